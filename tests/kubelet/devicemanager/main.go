// Command devicemanager is the kubelet's device manager with no kubelet around it.
//
// What it runs is k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, unchanged: the code that
// registers device plugins, follows their lists and asks them for devices on every node. The
// rest of a kubelet (runtime, cgroups, API server) is left out, so a test needs seconds and no
// cluster.
//
// One line of JSON on standard input is one command, one line of JSON on standard output is
// its answer. An answer with "error" says what the kubelet would have said.
//
//	{"do":"capacity"}                       what the node would report
//	{"do":"devices"}                        the healthy devices, with their NUMA nodes
//	{"do":"admit","pod":{…}}                admits a pod, container by container
//	{"do":"delete","name":"POD"}            the pod has ended
//	{"do":"stop"}                           the kubelet goes away in good order
//	{"do":"start"}                          a kubelet comes up on what the last one left behind
//	{"do":"hold","step":"STEP"}             keep the next registration at this step (steps.go)
//	{"do":"held","seconds":S}               wait until it is there
//	{"do":"release"}                        let it go on
//
// The path of the kubelet's socket is compiled into the kubelet, so run this in a mount
// namespace where /var/lib/kubelet is nobody else's.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// command is one line of standard input. What "do" does not need is left out.
type command struct {
	Do      string  `json:"do"`
	Pod     podSpec `json:"pod"`
	Name    string  `json:"name"`
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
}

// done is the answer of a command that has nothing to tell.
var done = map[string]bool{"done": true}

// machine is all that the commands act on: one node with at most one kubelet.
type machine struct {
	pods    *activePods
	steps   *steps
	kubelet *kubelet
}

var errStopped = errors.New("the kubelet is stopped")

func (m *machine) answer(c command) (any, error) {
	switch c.Do {
	case "start":
		if m.kubelet != nil {
			return nil, errors.New("the kubelet is running already")
		}
		k, err := startKubelet(m.pods)
		if err != nil {
			return nil, err
		}
		m.kubelet = k
		return done, nil
	case "hold":
		return done, m.steps.hold(c.Step)
	case "held":
		return done, m.steps.wait(time.Duration(c.Seconds * float64(time.Second)))
	case "release":
		return done, m.steps.release()
	}
	if m.kubelet == nil {
		return nil, errStopped
	}
	switch c.Do {
	case "capacity":
		return m.kubelet.capacity(), nil
	case "devices":
		return m.kubelet.devices(), nil
	case "admit":
		return m.kubelet.admit(c.Pod)
	case "delete":
		m.pods.remove(c.Name)
		m.kubelet.forgetEndedPods()
		return done, nil
	case "stop":
		stopping := m.kubelet
		m.kubelet = nil
		return done, stopping.stop()
	}
	return nil, fmt.Errorf("no such command: %q", c.Do)
}

func main() {
	watched := newSteps()
	// ContextualLogger: the device manager takes its logger from the context, and we want the
	// same one everywhere, since the log is also where a registration can be held.
	klog.SetLoggerWithOptions(logr.New(&sink{steps: watched, out: os.Stderr}), klog.ContextualLogger(true))
	m := &machine{pods: newActivePods(), steps: watched}
	answers := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		var answer any
		err := json.Unmarshal(lines.Bytes(), &c)
		if err == nil {
			answer, err = m.answer(c)
		}
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			fmt.Fprintln(os.Stderr, "cannot answer:", err)
			os.Exit(1)
		}
	}
}
