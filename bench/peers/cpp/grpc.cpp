/* gRPC in C++: the asynchronous server, one completion queue, one thread. The argument is the port. */
#include <cstdlib>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "sum.grpc.pb.h"

/* Calls that the server accepts at the same time. */
constexpr int accepts = 128;

/* Asks for another call as soon as this one has come. */
class Call {
  public:
    Call(bench::Calls::AsyncService &service, grpc::ServerCompletionQueue &queue)
        : service_(service), queue_(queue), responder_(&context_) {
        service_.RequestSum(&context_, &request_, &responder_, &queue_, &queue_, this);
    }

    void proceed(bool ok) {
        if (answered_ || !ok) {
            delete this;
            return;
        }
        new Call(service_, queue_);
        bench::SumReply reply;
        reply.set_result(request_.a() + request_.b());
        answered_ = true;
        responder_.Finish(reply, grpc::Status::OK, this);
    }

  private:
    bench::Calls::AsyncService &service_;
    grpc::ServerCompletionQueue &queue_;
    grpc::ServerContext context_;
    bench::SumRequest request_;
    grpc::ServerAsyncResponseWriter<bench::SumReply> responder_;
    bool answered_ = false;
};

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    bench::Calls::AsyncService service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(std::string("127.0.0.1:") + argv[1],
                             grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    auto queue = builder.AddCompletionQueue();
    auto server = builder.BuildAndStart();
    if (!server) return 1;
    for (int i = 0; i < accepts; i++) new Call(service, *queue);
    void *tag;
    bool ok;
    while (queue->Next(&tag, &ok)) static_cast<Call *>(tag)->proceed(ok);
    return 0;
}
