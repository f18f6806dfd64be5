/* echo [ADDRESS]: the floor of a UDP server, recvmmsg and sendmmsg of up to 32 datagrams. */
#define _GNU_SOURCE
#include "tcp.h"

enum { BATCH = 32, BYTES = 2048 };

int main(int argc, char **argv) {
    static char bytes[BATCH][BYTES];
    struct sockaddr_in names[BATCH], address = {.sin_family = AF_INET};
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    int descriptor = socket(AF_INET, SOCK_DGRAM, 0);
    inet_pton(AF_INET, argc > 1 ? argv[1] : "127.0.0.1", &address.sin_addr);
    if (bind(descriptor, (struct sockaddr *)&address, sizeof(address))) return 1;
    announced(descriptor);
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            parts[i] = (struct iovec){bytes[i], BYTES};
            messages[i].msg_hdr = (struct msghdr){.msg_name = &names[i],
                                                  .msg_namelen = sizeof(names[i]),
                                                  .msg_iov = &parts[i],
                                                  .msg_iovlen = 1};
        }
        int count = recvmmsg(descriptor, messages, BATCH, MSG_WAITFORONE, NULL);
        if (count < 0) return 1;
        for (int i = 0; i < count; i++) parts[i].iov_len = messages[i].msg_len;
        sendmmsg(descriptor, messages, (unsigned)count, 0);
    }
}
