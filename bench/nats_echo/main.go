// Answers requests at echo.sum with 5: the least that a server through NATS does.
package main

import (
	"log"
	"os"

	"github.com/nats-io/nats.go"
)

func main() {
	connection, err := nats.Connect(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	reply := []byte("5")
	_, err = connection.QueueSubscribe("echo.sum", "q", func(message *nats.Msg) {
		_ = message.Respond(reply)
	})
	if err != nil {
		log.Fatal(err)
	}
	select {}
}
