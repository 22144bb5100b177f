// Evaluates PromQL expressions, as Prometheus would, over made-up series.
//
// The first line of the input is a JSON array of series, each its labels with __name__ and by how much it rises a minute from 1;
// every further line is an expression as a JSON string. The answer to each is one JSON object a line: the error, or the
// number of samples in it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
)

// As long as the longest range that an expression of ours looks back.
const minutes = 8 * 60

type series struct {
	Labels map[string]string `json:"labels"`
	Rise   float64           `json:"rise"`
}

type answer struct {
	Error   string `json:"error,omitempty"`
	Samples int    `json:"samples"`
}

func load(storage *teststorage.TestStorage, all []series) error {
	appender := storage.Appender(context.Background())
	for _, one := range all {
		for minute := range minutes {
			if _, err := appender.Append(0, labels.FromMap(one.Labels), int64(minute)*60_000, 1+one.Rise*float64(minute)); err != nil {
				return err
			}
		}
	}
	return appender.Commit()
}

func evaluate(engine *promql.Engine, storage *teststorage.TestStorage, expression string) answer {
	at := time.UnixMilli((minutes - 1) * 60_000)
	query, err := engine.NewInstantQuery(context.Background(), storage, nil, expression, at)
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer query.Close()
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Samples: len(vector)}
}

func run() error {
	storage, err := teststorage.NewWithError()
	if err != nil {
		return err
	}
	defer storage.Close()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableNegativeOffset: true,
		Parser: parser.NewParser(parser.Options{}),
	})
	defer engine.Close()

	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 8<<20)
	var all []series
	if lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &all); err != nil {
			return fmt.Errorf("the first line is a JSON array of series: %w", err)
		}
	}
	if err := load(storage, all); err != nil {
		return err
	}
	for lines.Scan() {
		var expression string
		if err := json.Unmarshal(lines.Bytes(), &expression); err != nil {
			return fmt.Errorf("each line after the first is one JSON string: %w", err)
		}
		if err := out.Encode(evaluate(engine, storage, expression)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "promql-evaluate: %v\n", err)
		os.Exit(1)
	}
}
