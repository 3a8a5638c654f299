package main

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// A registration runs through steps that no interface of the device manager shows, but each is
// logged, by the very goroutine that does it. So a log sink that blocks is a way to keep a
// registration at an exact step for as long as a test likes, without changing the kubelet.
// Only messages that are logged with no lock held are used: the manager must stay answerable.
var messageOf = map[string]string{
	// Register has been received. The plugin is not called back yet.
	"register": "Got registration request from device plugin with resource",
	// The plugin has told its options. Register is not answered and ListAndWatch not called.
	"connected": "Connected to new client",
	// The first list is here, and not taken in.
	"list": "State pushed for device plugin",
	// The list is taken in: the node could be given pods.
	"listed": "Processed device updates for resource",
}

// steps holds at most one goroutine, at the one message that was asked for.
type steps struct {
	mutex   sync.Mutex
	message string        // hold the first goroutine that logs this; "": none
	reached chan struct{} // closed when it does
	resume  chan struct{} // closed to let it go on
}

func newSteps() *steps { return &steps{} }

func (s *steps) hold(step string) error {
	message, known := messageOf[step]
	if !known {
		return fmt.Errorf("no such step: %q", step)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.resume != nil {
		return errors.New("a step is asked for already")
	}
	s.message, s.reached, s.resume = message, make(chan struct{}), make(chan struct{})
	return nil
}

func (s *steps) wait(limit time.Duration) error {
	s.mutex.Lock()
	reached := s.reached
	s.mutex.Unlock()
	if reached == nil {
		return errors.New("no step is asked for")
	}
	select {
	case <-reached:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("no registration came to this step in %v", limit)
	}
}

func (s *steps) release() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.resume == nil {
		return errors.New("no step is asked for")
	}
	close(s.resume)
	s.message, s.reached, s.resume = "", nil, nil
	return nil
}

// pass is called with every message of the log, and returns when its goroutine may go on.
func (s *steps) pass(message string) {
	s.mutex.Lock()
	if s.message == "" || s.message != message {
		s.mutex.Unlock()
		return
	}
	s.message = "" // the first one only
	resume := s.resume
	close(s.reached)
	s.mutex.Unlock()
	<-resume
}

// sink writes the kubelet's log to a stream, one line a message, and offers each to steps.
type sink struct {
	steps  *steps
	out    io.Writer
	values []any
}

// verbosity is klog's -v: 4 shows every call that is made of a plugin.
const verbosity = 4

func (s *sink) Init(logr.RuntimeInfo)  {}
func (s *sink) Enabled(level int) bool { return level <= verbosity }
func (s *sink) WithName(string) logr.LogSink {
	return s
}

func (s *sink) WithValues(values ...any) logr.LogSink {
	return &sink{steps: s.steps, out: s.out, values: append(append([]any{}, s.values...), values...)}
}

func (s *sink) Info(_ int, message string, values ...any) { s.write("", message, values) }

func (s *sink) Error(err error, message string, values ...any) {
	s.write(fmt.Sprintf(" error=%q", fmt.Sprint(err)), message, values)
}

// longestValue keeps a list of 12,800 ids from filling the log.
const longestValue = 200

func (s *sink) write(suffix, message string, values []any) {
	line := time.Now().Format("15:04:05.000000") + " " + message
	all := append(append([]any{}, s.values...), values...)
	for i := 0; i+1 < len(all); i += 2 {
		value := fmt.Sprint(all[i+1])
		if len(value) > longestValue {
			value = value[:longestValue] + "…"
		}
		line += fmt.Sprintf(" %v=%s", all[i], value)
	}
	fmt.Fprintln(s.out, line+suffix)
	s.steps.pass(message)
}
