package main

// #include <ucall/ucall.h>
// void sum(ucall_call_t call, ucall_callback_tag_t tag);
import "C"
import "fmt"

//export sum
func sum(call C.ucall_call_t, tag C.ucall_callback_tag_t) {
	var a, b C.int64_t
	if C.ucall_param_positional_i64(call, 0, &a) && C.ucall_param_positional_i64(call, 1, &b) {
		C.ucall_call_reply_i64(call, a+b)
	} else {
		C.ucall_call_reply_error_invalid_params(call)
	}
}

func main() {
	config := C.ucall_config_t{pick_port: true}
	var server C.ucall_server_t
	if !C.ucall_init(&config, &server) {
		panic(C.GoString(C.ucall_last_error()))
	}
	C.ucall_add_procedure(server, C.CString("sum"), C.ucall_callback_t(C.sum), nil)
	fmt.Println("listening on", config.port)
	C.ucall_take_calls(server, 0)
}
