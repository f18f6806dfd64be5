// Replies as the READMEs of earlier versions do: with JSON text that the program prints itself.
#include <cstdio>
#include <ucall/ucall.h>

static void reply_printed(ucall_call_t call, ucall_callback_tag_t format) {
    int64_t a{}, b{};
    char text[256]{};
    if (!ucall_param_named_i64(call, "a", 0, &a) || !ucall_param_named_i64(call, "b", 0, &b))
        return ucall_call_reply_error_invalid_params(call);
    int length = snprintf(text, sizeof(text), static_cast<char const*>(format), a + b);
    ucall_call_reply_content(call, text, length);
}

int main(int, char**) {
    ucall_server_t server{};
    ucall_config_t config{};
    config.pick_port = true;
    // Compilers warn of the first if it is written in the call.
    char wrong[] = "%ll", right[] = "%lld";
    if (!ucall_init(&config, &server)) return 1;
    ucall_add_procedure(server, "wrong", &reply_printed, wrong);
    ucall_add_procedure(server, "right", &reply_printed, right);
    printf("listening on %d\n", static_cast<int>(config.port));
    fflush(stdout);
    ucall_take_calls(server, 0);
    ucall_free(server);
    return 0;
}
