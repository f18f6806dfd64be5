/*
 * ucall for C++11: classes with RAII over ucall.h. Optional; all functions of ucall.h work beside it.
 *
 *     ucall::server server;
 *     server.add("sum", [](ucall::call call) {
 *         call.reply(call.param<int64_t>("a") + call.param<int64_t>("b"));
 *     });
 *     server.run();
 *
 * An exception that leaves a function becomes the reply: ucall::rpc_error as it is,
 * ucall::invalid_params as -32602, anything else that is thrown as -32603 without its text.
 *
 * Apache-2.0.
 */
#ifndef UCALL_UCALL_HPP
#define UCALL_UCALL_HPP

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ucall/ucall.h>

namespace ucall {

/* A server could not be made or changed. */
class error : public std::runtime_error {
  public:
    error() : std::runtime_error(ucall_last_error()), code(ucall_last_error_code()) {}
    ucall_error_t code;
};

/* The reply is this error. */
class rpc_error : public std::runtime_error {
  public:
    rpc_error(int number, std::string const &message)
        : std::runtime_error(message), code(number) {}
    int code;
};

/* A param is missing or of another type. */
class invalid_params : public rpc_error {
  public:
    explicit invalid_params(std::string const &name)
        : rpc_error(-32602, "Invalid params: " + name) {}
};

/* A writer of JSON, freed with this object. */
class writer {
  public:
    writer() : handle_(ucall_writer_new(), ucall_writer_free) {}
    ucall_writer_t get() const { return handle_.get(); }

  private:
    std::unique_ptr<struct ucall_writer, void (*)(ucall_writer_t)> handle_;
};

/* A call, while its function runs. */
class call {
  public:
    explicit call(ucall_call_t handle) : handle_(handle) {}
    ucall_call_t get() const { return handle_; }

    /* A param by name, as bool, int64_t, uint64_t, double or std::string; else invalid_params. */
    template <typename type> type param(std::string const &name) const {
        type value;
        if (!read(name, value)) throw invalid_params(name);
        return value;
    }

    void reply(bool value) const { ucall_call_reply_bool(handle_, value); }
    void reply(int64_t value) const { ucall_call_reply_i64(handle_, value); }
    void reply(uint64_t value) const { ucall_call_reply_u64(handle_, value); }
    void reply(double value) const { ucall_call_reply_f64(handle_, value); }
    void reply(char const *text) const {
        ucall_call_reply_str(handle_, text, UCALL_NUL_TERMINATED);
    }
    void reply(std::string const &text) const {
        ucall_call_reply_str(handle_, text.data(), text.size());
    }
    void reply(writer const &value) const { ucall_call_reply_writer(handle_, value.get()); }

  private:
    bool read(std::string const &name, bool &value) const {
        return ucall_param_named_bool(handle_, name.data(), name.size(), &value);
    }
    bool read(std::string const &name, int64_t &value) const {
        return ucall_param_named_i64(handle_, name.data(), name.size(), &value);
    }
    bool read(std::string const &name, uint64_t &value) const {
        return ucall_param_named_u64(handle_, name.data(), name.size(), &value);
    }
    bool read(std::string const &name, double &value) const {
        return ucall_param_named_f64(handle_, name.data(), name.size(), &value);
    }
    bool read(std::string const &name, std::string &value) const {
        ucall_str_t text;
        size_t length;
        bool found = ucall_param_named_str(handle_, name.data(), name.size(), &text, &length);
        if (found) value.assign(text, length);
        return found;
    }

    ucall_call_t handle_;
};

/* A server, freed with this object. Its functions may run on any serving thread. */
class server {
  public:
    typedef std::function<void(call)> function;

    explicit server(ucall_config_t config = ucall_config_t()) : config_(config), handle_(nullptr) {
        if (!ucall_init(&config_, &handle_)) throw error();
    }
    ~server() { ucall_free(handle_); }
    server(server const &) = delete;
    server &operator=(server const &) = delete;

    ucall_server_t get() const { return handle_; }
    uint16_t port() const { return config_.port; }

    /* Registers a function. It lives as long as the server. One thread at a time may add. */
    void add(std::string const &name, function callback) {
        functions_.emplace_back(new function(std::move(callback)));
        if (!ucall_add_procedure(handle_, name.c_str(), run_function, functions_.back().get()))
            throw error();
    }

    /* Serves until `stop`. */
    void run(uint16_t thread = 0) {
        if (!ucall_take_calls(handle_, thread)) throw error();
    }

    /* Ends `run`; on any thread, and in a signal handler. */
    void stop() { ucall_stop(handle_); }

  private:
    static void run_function(ucall_call_t handle, ucall_callback_tag_t tag) {
        try {
            (*static_cast<function *>(tag))(call(handle));
        } catch (rpc_error const &failure) {
            ucall_call_reply_error(handle, failure.code, failure.what(), UCALL_NUL_TERMINATED);
        } catch (...) {
            ucall_call_reply_error_unknown(handle);
        }
    }

    ucall_config_t config_;
    ucall_server_t handle_;
    std::vector<std::unique_ptr<function>> functions_;
};

} // namespace ucall

#endif
