// Calls `echo` over WebSocket with github.com/coder/websocket.
//
//	websocket_client URL
//
// Prints the results, the subprotocol and the code of the server's Close frame as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/coder/websocket"
)

const (
	callsAtOnce = 100
	waitMax     = time.Minute
)

type reply struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func call(method string, params any, id int) []byte {
	text, err := json.Marshal(
		map[string]any{"jsonrpc": "2.0", "method": method, "params": params, "id": id})
	check(err)
	return text
}

func receive(ctx context.Context, socket *websocket.Conn) reply {
	kind, text, err := socket.Read(ctx)
	check(err)
	if kind != websocket.MessageText {
		log.Fatal("a reply that is not text")
	}
	var found reply
	check(json.Unmarshal(text, &found))
	return found
}

// calls sends all calls before it reads, and returns how many replies are right.
func calls(ctx context.Context, socket *websocket.Conn) int {
	for id := range callsAtOnce {
		check(socket.Write(ctx, websocket.MessageText, call("echo", []int{id}, id)))
	}
	right := 0
	for range callsAtOnce {
		found := receive(ctx, socket)
		if string(found.Result) == fmt.Sprint(found.ID) {
			right++
		}
	}
	return right
}

// echo sends a call of many bytes as a binary message in fragments.
func echo(ctx context.Context, socket *websocket.Conn, length int) int {
	message, err := socket.Writer(ctx, websocket.MessageBinary)
	check(err)
	_, err = message.Write(call("echo", []string{strings.Repeat("é", length)}, 1))
	check(err)
	check(message.Close())
	var text string
	check(json.Unmarshal(receive(ctx, socket).Result, &text))
	return strings.Count(text, "é")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), waitMax)
	defer cancel()
	options := websocket.DialOptions{
		Subprotocols:    []string{"jsonrpc"},
		CompressionMode: websocket.CompressionContextTakeover,
	}
	socket, _, err := websocket.Dial(ctx, os.Args[1], &options)
	check(err)
	socket.SetReadLimit(-1)
	right, echoed := calls(ctx, socket), echo(ctx, socket, 70_000)
	reading := socket.CloseRead(ctx)
	check(socket.Ping(reading))
	check(socket.Close(3001, "done"))
	refused, _, err := websocket.Dial(ctx, os.Args[1], nil)
	check(err)
	check(refused.Write(ctx, websocket.MessageBinary, []byte{1, 2}))
	_, _, err = refused.Read(ctx)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls":       right,
		"echoed":      echoed,
		"subprotocol": socket.Subprotocol(),
		"refused":     websocket.CloseStatus(err),
	}))
}
