/*
 * ucall for C++11: classes with RAII over ucall.h. Optional; all functions of ucall.h work beside it.
 *
 *     ucall::server server;
 *     server.add("sum", [](ucall::call call) {
 *         call.reply(call.param<int>("a") + call.param<int>("b"));
 *     });
 *     server.run();
 *
 * An exception that leaves a function becomes the reply: ucall::rpc_error as it is,
 * ucall::invalid_params as -32602, anything else that is thrown as -32603 without its text, which
 * the log has, with the name of the procedure.
 *
 * Apache-2.0.
 */
#ifndef UCALL_UCALL_HPP
#define UCALL_UCALL_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if __cplusplus >= 201703L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#define UCALL_HAS_CPP17 1
#include <optional>
#include <string_view>
#endif

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

    /*
     * A param by name or by position from 0, as bool, an integer or floating-point type, or
     * std::string, or an array as ucall_buffer_t; from C++17 also as std::string_view, valid as long as the call, and as
     * std::optional of these, empty without the param and for null. Anything else, and a number out
     * of the type's range, throws invalid_params.
     */
    template <typename type> type param(std::string const &name) const {
        return find<type>(key{name.c_str(), name.size(), 0}, name);
    }
    template <typename type, typename number>
    typename std::enable_if<std::is_integral<number>::value, type>::type param(
        number index) const {
        return find<type>(key{nullptr, 0, static_cast<size_t>(index)}, std::to_string(index));
    }
    template <typename type> type param(std::nullptr_t) const = delete;

    /* Replies with one value. A null reply is reply(nullptr); other pointers are no values. */
    template <typename type>
    typename std::enable_if<std::is_arithmetic<type>::value>::type reply(type value) const {
        static_assert(!std::is_same<type, char>::value, "a char is no number: reply with a text");
        reply_number(value, kind_of<type>());
    }
    void reply(std::nullptr_t) const { ucall_call_reply_null(handle_); }
    void reply(char const *text) const {
        ucall_call_reply_str(handle_, text, UCALL_NUL_TERMINATED);
    }
    template <typename type> void reply(type const *) const = delete;
    void reply(std::string const &text) const {
        ucall_call_reply_str(handle_, text.data(), text.size());
    }
    void reply(writer const &value) const { ucall_call_reply_writer(handle_, value.get()); }
    void reply(ucall_buffer_t const &value) const { ucall_call_reply_buffer(handle_, &value); }

#ifdef UCALL_HAS_CPP17
    void reply(std::string_view text) const {
        ucall_call_reply_str(handle_, text.empty() ? "" : text.data(), text.size());
    }
    template <typename type> void reply(std::optional<type> const &value) const {
        if (value) reply(*value);
        else reply(nullptr);
    }
#endif

  private:
    /* By name, or by position if that is NULL. */
    struct key {
        char const *name;
        size_t length;
        size_t index;
    };

    template <int number> using kind = std::integral_constant<int, number>;
    /* 0: bool, 1: floating-point, 2: signed, 3: unsigned. */
    template <typename type>
    using kind_of = kind<std::is_same<type, bool>::value      ? 0
                         : std::is_floating_point<type>::value ? 1
                         : std::is_signed<type>::value         ? 2
                                                               : 3>;

    template <typename type> void reply_number(type value, kind<0>) const {
        ucall_call_reply_bool(handle_, value);
    }
    template <typename type> void reply_number(type value, kind<1>) const {
        ucall_call_reply_f64(handle_, static_cast<double>(value));
    }
    template <typename type> void reply_number(type value, kind<2>) const {
        ucall_call_reply_i64(handle_, value);
    }
    template <typename type> void reply_number(type value, kind<3>) const {
        ucall_call_reply_u64(handle_, value);
    }

    template <typename type> struct tag {};

    template <typename type> type find(key at, std::string const &name) const {
        return find(at, name, tag<type>());
    }
    template <typename type> type find(key at, std::string const &name, tag<type>) const {
        type value{};
        if (!read(at, value)) throw invalid_params(name);
        return value;
    }
#ifdef UCALL_HAS_CPP17
    template <typename type>
    std::optional<type> find(key at, std::string const &name, tag<std::optional<type>>) const {
        ucall_type_t found = at.name ? ucall_param_named_type(handle_, at.name, at.length)
                                     : ucall_param_positional_type(handle_, at.index);
        if (found == UCALL_TYPE_NONE || found == UCALL_TYPE_NULL) return std::nullopt;
        return find<type>(at, name);
    }
    bool read(key at, std::string_view &value) const {
        ucall_str_t text;
        size_t length;
        bool found = read_text(at, text, length);
        if (found) value = std::string_view(text, length);
        return found;
    }
#endif

    template <typename type>
    typename std::enable_if<std::is_arithmetic<type>::value, bool>::type read(key at,
                                                                              type &value) const {
        return read_number(at, value, kind_of<type>());
    }
    bool read(key at, std::string &value) const {
        ucall_str_t text;
        size_t length;
        bool found = read_text(at, text, length);
        if (found) value.assign(text, length);
        return found;
    }
    bool read(key at, ucall_buffer_t &value) const {
        return at.name ? ucall_param_named_buffer(handle_, at.name, at.length, &value)
                       : ucall_param_positional_buffer(handle_, at.index, &value);
    }
    bool read_text(key at, ucall_str_t &text, size_t &length) const {
        return at.name ? ucall_param_named_str(handle_, at.name, at.length, &text, &length)
                       : ucall_param_positional_str(handle_, at.index, &text, &length);
    }

    bool read_number(key at, bool &value, kind<0>) const {
        return at.name ? ucall_param_named_bool(handle_, at.name, at.length, &value)
                       : ucall_param_positional_bool(handle_, at.index, &value);
    }
    template <typename type> bool read_number(key at, type &value, kind<1>) const {
        double found;
        if (!(at.name ? ucall_param_named_f64(handle_, at.name, at.length, &found)
                      : ucall_param_positional_f64(handle_, at.index, &found)))
            return false;
        value = static_cast<type>(found);
        return true;
    }
    template <typename type> bool read_number(key at, type &value, kind<2>) const {
        int64_t found;
        if (!(at.name ? ucall_param_named_i64(handle_, at.name, at.length, &found)
                      : ucall_param_positional_i64(handle_, at.index, &found)))
            return false;
        value = static_cast<type>(found);
        return value == found;
    }
    template <typename type> bool read_number(key at, type &value, kind<3>) const {
        uint64_t found;
        if (!(at.name ? ucall_param_named_u64(handle_, at.name, at.length, &found)
                      : ucall_param_positional_u64(handle_, at.index, &found)))
            return false;
        value = static_cast<type>(found);
        return value == found;
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

    /* The same once all calls have ended, or after that time. */
    void drain(uint64_t timeout_ms) { ucall_drain(handle_, timeout_ms); }

  private:
    static void run_function(ucall_call_t handle, ucall_callback_tag_t tag) {
        try {
            (*static_cast<function *>(tag))(call(handle));
        } catch (rpc_error const &failure) {
            ucall_call_reply_error(handle, failure.code, failure.what(), UCALL_NUL_TERMINATED);
        } catch (std::exception const &failure) {
            report(handle, failure.what());
        } catch (...) {
            report(handle, "no std::exception");
        }
    }

    static void report(ucall_call_t handle, char const *what) {
        try {
            std::string const line = std::string("threw: ") + what;
            ucall_call_warn(handle, line.data(), line.size());
        } catch (std::bad_alloc const &) {
            /* There is no memory for the line. */
        }
        ucall_call_reply_error_unknown(handle);
    }

    ucall_config_t config_;
    ucall_server_t handle_;
    std::vector<std::unique_ptr<function>> functions_;
};

} // namespace ucall

#endif
