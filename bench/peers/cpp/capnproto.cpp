/* Cap'n Proto RPC in C++: a server of one thread. The argument is the port. */
#include <cstdlib>

#include <capnp/ez-rpc.h>

#include "sum.capnp.h"

class CallsServer final : public Calls::Server {
    kj::Promise<void> sum(SumContext context) override {
        auto params = context.getParams();
        context.getResults().setResult(params.getA() + params.getB());
        return kj::READY_NOW;
    }
};

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    capnp::EzRpcServer server(kj::heap<CallsServer>(), "127.0.0.1", (unsigned)atoi(argv[1]));
    kj::NEVER_DONE.wait(server.getWaitScope());
}
