package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
)

type params struct {
	A int `json:"a"`
	B int `json:"b"`
}

type call struct {
	JSONRPC string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  params `json:"params"`
	ID      int    `json:"id"`
}

func main() {
	body, _ := json.Marshal(call{"2.0", "sum", params{55, 21}, 1})
	for range 2 {
		reply, err := http.Post(os.Args[1], "application/json", bytes.NewReader(body))
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
	}
}
