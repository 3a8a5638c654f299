// Command probe is the only program in this suite's container images.
//
//	probe pause                 holds a pod's namespaces open, as process 1 of its sandbox
//	probe open [-stay] [PATH…]  tries to open each device node for reading, writing and both, and prints one
//	                            line of JSON: who it is, what it was told, and each outcome by its errno's
//	                            name; without a PATH it takes what it finds in /dev/dri
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type attempt struct {
	Path   string `json:"path"`
	Access string `json:"access"`
	Result string `json:"result"`
}

type report struct {
	UID      int               `json:"uid"`
	Env      map[string]string `json:"env"`
	Attempts []attempt         `json:"attempts"`
}

var accesses = []struct {
	name string
	flag int
}{{"r", syscall.O_RDONLY}, {"w", syscall.O_WRONLY}, {"rw", syscall.O_RDWR}}

// The outcomes that the tests tell apart; any other is printed as its number, so that nothing is hidden.
var names = map[syscall.Errno]string{
	syscall.EPERM:  "EPERM",
	syscall.EACCES: "EACCES",
	syscall.ENXIO:  "ENXIO",
	syscall.ENODEV: "ENODEV",
	syscall.ENOENT: "ENOENT",
}

func try(path string, flag int) string {
	fd, err := syscall.Open(path, flag|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err == nil {
		syscall.Close(fd)
		return "OK"
	}
	if errno, ok := err.(syscall.Errno); ok {
		if name, known := names[errno]; known {
			return name
		}
		return fmt.Sprintf("errno %d", int(errno))
	}
	return err.Error()
}

func untilTold() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	<-told
}

func pause() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
	untilTold()
}

func open(paths []string) {
	said := report{UID: os.Getuid(), Env: map[string]string{}, Attempts: []attempt{}}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		said.Env[name] = value
	}
	if len(paths) == 0 {
		paths, _ = filepath.Glob("/dev/dri/*")
	}
	for _, path := range paths {
		for _, access := range accesses {
			said.Attempts = append(said.Attempts, attempt{path, access.name, try(path, access.flag)})
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		os.Exit(1)
	}
}

func main() {
	arguments := os.Args[1:]
	switch {
	case len(arguments) > 0 && arguments[0] == "pause":
		pause()
	case len(arguments) > 1 && arguments[0] == "open" && arguments[1] == "-stay":
		open(arguments[2:])
		untilTold()
	case len(arguments) > 0 && arguments[0] == "open":
		open(arguments[1:])
	default:
		fmt.Fprintln(os.Stderr, "usage: probe pause | probe open [-stay] [PATH...]")
		os.Exit(2)
	}
}
