/* Calls `sum` of a Cap'n Proto server in a closed loop, and checks each result.
 *
 *     peer-capnproto-load PORT CONNECTIONS DEPTH SECONDS
 *
 * Prints one line of JSON: requests, duration in seconds, and latencies in microseconds. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "sum.capnp.h"

using Clock = std::chrono::steady_clock;

struct Result {
    Clock::time_point end;
    int64_t next = 0;
    std::vector<float> micros;
};

/* One call after another, until the end. */
static kj::Promise<void> call(Calls::Client &client, Result &result) {
    auto begun = Clock::now();
    if (begun >= result.end) return kj::READY_NOW;
    int64_t a = result.next++, b = a % 97;
    auto request = client.sumRequest();
    request.setA(a);
    request.setB(b);
    return request.send().then([&, a, b, begun](auto response) {
        KJ_REQUIRE(response.getResult() == a + b, "wrong result");
        result.micros.push_back(
            std::chrono::duration<float, std::micro>(Clock::now() - begun).count());
        return call(client, result);
    });
}

struct Connection {
    kj::Own<kj::AsyncIoStream> stream;
    capnp::TwoPartyClient rpc;
    Calls::Client calls;

    explicit Connection(kj::Own<kj::AsyncIoStream> connected)
        : stream(kj::mv(connected)), rpc(*stream), calls(rpc.bootstrap().castAs<Calls>()) {}
};

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    unsigned port = (unsigned)atoi(argv[1]);
    int connections = atoi(argv[2]), depth = atoi(argv[3]);
    auto io = kj::setupAsyncIo();
    auto address =
        io.provider->getNetwork().parseAddress("127.0.0.1", port).wait(io.waitScope);
    std::vector<kj::Own<Connection>> opened;
    for (int i = 0; i < connections; i++)
        opened.push_back(kj::heap<Connection>(address->connect().wait(io.waitScope)));

    Result result;
    auto begun = Clock::now();
    result.end = begun + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(atof(argv[4])));
    auto callers = kj::heapArrayBuilder<kj::Promise<void>>((size_t)(connections * depth));
    for (auto &connection : opened)
        for (int i = 0; i < depth; i++) callers.add(call(connection->calls, result));
    kj::joinPromises(callers.finish()).wait(io.waitScope);
    double duration = std::chrono::duration<double>(Clock::now() - begun).count();

    auto &micros = result.micros;
    if (micros.empty()) return 1;
    std::sort(micros.begin(), micros.end());
    auto at = [&](double share) { return micros[(size_t)(share * (double)(micros.size() - 1))]; };
    printf("{\"requests\": %zu, \"duration\": %.6f, \"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f}\n",
           micros.size(), duration, at(.5), at(.99), at(.999));
}
