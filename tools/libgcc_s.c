/* The functions of libgcc_s that Rust calls, as something to link against. zig would link an
 * unwinder of its own into the library; but glibc ends a thread (pthread_exit, as CPython before
 * 3.14 does at exit) by unwinding with libgcc_s, and two unwinders on one stack crash. */
#define FUNCTION(name) void _Unwind_##name(void) {}
FUNCTION(Backtrace)
FUNCTION(DeleteException)
FUNCTION(FindEnclosingFunction)
FUNCTION(ForcedUnwind)
FUNCTION(GetCFA)
FUNCTION(GetDataRelBase)
FUNCTION(GetGR)
FUNCTION(GetIP)
FUNCTION(GetIPInfo)
FUNCTION(GetLanguageSpecificData)
FUNCTION(GetRegionStart)
FUNCTION(GetTextRelBase)
FUNCTION(RaiseException)
FUNCTION(Resume)
FUNCTION(Resume_or_Rethrow)
FUNCTION(SetGR)
FUNCTION(SetIP)
