// Reads PromQL expressions, one JSON string a line, and says for each, as one JSON object a line, which metrics it
// selects, by which labels, and which labels it groups and joins by. The parser is Prometheus' own.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

type selector struct {
	Metric string `json:"metric"`
	// What each label may be, alternatives of a regular expression apart.
	Labels map[string][]string `json:"labels"`
}

type answer struct {
	Error     string     `json:"error,omitempty"`
	Selectors []selector `json:"selectors"`
	Grouping  []string   `json:"grouping"`
}

func read(expression string) answer {
	found := answer{Selectors: []selector{}, Grouping: []string{}}
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		found.Error = err.Error()
		return found
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			one := selector{Metric: node.Name, Labels: map[string][]string{}}
			for _, matcher := range node.LabelMatchers {
				if matcher.Name != labels.MetricName {
					one.Labels[matcher.Name] = append(one.Labels[matcher.Name], strings.Split(matcher.Value, "|")...)
				}
			}
			found.Selectors = append(found.Selectors, one)
		case *parser.AggregateExpr:
			found.Grouping = append(found.Grouping, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				found.Grouping = append(found.Grouping, node.VectorMatching.MatchingLabels...)
				found.Grouping = append(found.Grouping, node.VectorMatching.Include...)
			}
		}
		return nil
	})
	return found
}

func main() {
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var expression string
		if err := json.Unmarshal(lines.Bytes(), &expression); err != nil {
			fmt.Fprintf(os.Stderr, "promql-selectors: each line is one JSON string: %v\n", err)
			os.Exit(1)
		}
		if err := out.Encode(read(expression)); err != nil {
			fmt.Fprintf(os.Stderr, "promql-selectors: %v\n", err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintf(os.Stderr, "promql-selectors: %v\n", err)
		os.Exit(1)
	}
}
