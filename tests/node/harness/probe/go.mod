module gpuplug.test/probe

go 1.24
