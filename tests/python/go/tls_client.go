// Calls `add` over HTTPS and over raw TLS, as Go's standard library does.
//
//	tls_client AUTHORITY PORT
//
// Prints what came of it as JSON.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
)

const (
	goroutines = 8
	callsEach  = 50
)

type reply struct {
	Result int `json:"result"`
}

func call(a, b int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"add","params":[%d,%d],"id":1}`, a, b)
}

func trust(path string) *tls.Config {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		log.Fatal("no certificate in ", path)
	}
	return &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(8)}
}

func overHTTP(config *tls.Config, port string) int64 {
	client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	var calls atomic.Int64
	var waiting sync.WaitGroup
	// Not waiting.Go, because Debian 13 has Go 1.24.
	waiting.Add(goroutines)
	for number := range goroutines {
		go func() {
			defer waiting.Done()
			for i := range callsEach {
				response, err := client.Post(
					"https://localhost:"+port, "application/json", bytes.NewReader(call(number, i)))
				if err != nil {
					log.Fatal(err)
				}
				var got reply
				err = json.NewDecoder(response.Body).Decode(&got)
				response.Body.Close()
				if err != nil || got.Result != number+i {
					log.Fatal(err, " ", got)
				}
				calls.Add(1)
			}
		}()
	}
	waiting.Wait()
	return calls.Load()
}

// One document and its reply. The tickets of a session come before the first reply.
func overRaw(config *tls.Config, port string) (int, tls.ConnectionState) {
	connection, err := tls.Dial("tcp", "localhost:"+port, config)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	if _, err := connection.Write(call(1, 2)); err != nil {
		log.Fatal(err)
	}
	line, err := bufio.NewReader(connection).ReadBytes('\n')
	if err != nil {
		log.Fatal(err)
	}
	var got reply
	if err := json.Unmarshal(line, &got); err != nil {
		log.Fatal(err)
	}
	return got.Result, connection.ConnectionState()
}

func main() {
	config := trust(os.Args[1])
	calls := overHTTP(config, os.Args[2])
	overRaw(config, os.Args[2])
	raw, state := overRaw(config, os.Args[2])
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls":   calls,
		"raw":     raw,
		"resumed": state.DidResume,
		"version": tls.VersionName(state.Version),
	})
}
