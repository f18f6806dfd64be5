//! A registered function: its signature, its conversions and how it runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use ucall_proto::{Parts, Reply};
use ucall_server::{BatchLimits, Overflow, PathPattern, RouteAccess, SeriesIndex};

use crate::access::FunctionAccess;
use crate::asgi::Mount;
use crate::convert::{self, ConversionFault, Convert, Results};
use crate::ffi::DropAttached;
use crate::process_batches::ProcessFunction;
use crate::waiting_limit::WaitingLimit;

/// A registered function.
#[derive(Debug)]
pub(crate) struct Procedure {
    /// The name that clients call.
    pub(crate) name: String,
    pub(crate) callable: Py<PyAny>,
    /// `None` for a callable without a signature (some builtins): it is called with the params as
    /// they are. Also `None` with hooks.
    pub(crate) signature: Option<Signature>,
    /// Replaces an object that JSON does not have by one that it has.
    pub(crate) encode: Py<PyAny>,
    pub(crate) mode: CallMode,
    /// How many of its calls may wait for a thread. A batcher has the limit of those for a batch.
    pub(crate) waiting_limit: Option<WaitingLimit>,
    /// Returns the weight of a call in a batch.
    pub(crate) weigh: Option<Py<PyAny>>,
    /// The series of its calls, if they are measured.
    pub(crate) series: Option<SeriesIndex>,
    /// Whether a call that comes again in a datagram may run again.
    pub(crate) is_idempotent: bool,
    pub(crate) stream: StreamRules,
    /// Who may call it.
    pub(crate) access: FunctionAccess,
    /// What the caller's token must allow.
    pub(crate) scopes: Arc<[String]>,
    /// Whether calls run on the worker's thread, and any caller may make them.
    pub(crate) is_plain: bool,
    /// The limit of a call's duration, from its arrival.
    pub(crate) timeout: Option<Duration>,
    /// Whether the log has named it as slow.
    pub(crate) is_logged_as_slow: AtomicBool,
    /// Set if the function answers the requests of a route.
    pub(crate) route: Option<RouteRules>,
    /// Set if it is a mounted application.
    pub(crate) mount: Option<Mount>,
    /// Set if its batches run in other processes.
    pub(crate) in_processes: Option<ProcessFunction>,
    /// Set if the callable is a hook: the function, and the hooks within.
    pub(crate) hooked: Option<Arc<Hooked>>,
    /// The times of its batches by their weights, if they were measured before the first call.
    pub(crate) batch_times: OnceLock<Vec<(u64, Duration)>>,
}

/// The hooks around a function, whose procedure has the outermost one as its callable.
#[derive(Debug)]
pub(crate) struct Hooked {
    /// Calls the outermost hook with a `ucall.Call`.
    pub(crate) call: CallHooked,
    /// The hooks within it, from the outside in.
    pub(crate) inner: Vec<Py<PyAny>>,
    /// How many of these are async.
    pub(crate) inner_async: usize,
    /// Makes what the last async hook awaits; `None` if the call is awaitable as it is.
    pub(crate) later: Option<Py<PyAny>>,
    pub(crate) function: SharedProcedure,
    /// Whether there is such a method.
    pub(crate) is_known: bool,
    /// Whether the worker runs it: a native procedure, of the name that the call has.
    pub(crate) is_native: bool,
    /// The names of all hooks, for the log.
    pub(crate) names: String,
}

/// How a function answers the requests of a route.
#[derive(Debug)]
pub(crate) struct RouteRules {
    pub(crate) access: RouteAccess,
    /// The params in its path.
    pub(crate) pattern: Option<PathPattern>,
    /// Whether it gets bodies in parts.
    pub(crate) streams_body: bool,
}

impl From<RouteAccess> for RouteRules {
    fn from(access: RouteAccess) -> Self {
        Self { access, pattern: None, streams_body: false }
    }
}

/// Calls a hook with the context of a call, which has the params, and their parts.
pub(crate) type CallHooked = for<'py> fn(
    &Bound<'py, PyAny>,
    &Arc<Hooked>,
    Bound<'py, PyAny>,
    Option<&Arc<Parts>>,
) -> PyResult<Bound<'py, PyAny>>;

/// A procedure, which any thread may drop: its table and its calls share it.
pub(crate) type SharedProcedure = Arc<DropAttached<Procedure>>;

/// How the calls of a function run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallMode {
    /// On the worker's thread, one after another.
    Inline,
    /// As a task of the worker's event loop: the function returns a coroutine.
    Task,
    /// In a thread of the pool.
    Thread,
    /// Elsewhere: the function returns a `concurrent.futures.Future` at once.
    Future,
    /// Many calls at once: the function takes lists and returns one.
    Batch(BatchRules),
    /// A generator.
    Generator(Executor),
    /// A generator that takes calls between its steps.
    Slots { count: usize, waiting_max: Option<usize>, executor: Executor },
}

/// Where the code of a function runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Executor {
    /// On the worker's thread; of a generator, some steps a turn.
    Inline,
    /// In a task of the worker's event loop.
    Task,
    /// In a thread of the pool.
    Thread,
}

/// How the callers of a generator get its items.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StreamRules {
    /// Whether calls are refused that do not take items one by one.
    pub(crate) only: bool,
    pub(crate) overflow: Overflow,
}

impl StreamRules {
    /// Reads what `python/ucall/_functions/registration.py` describes.
    pub(crate) fn from_description(description: Option<(bool, String)>) -> PyResult<Self> {
        let Some((only, overflow)) = description else { return Ok(Self::default()) };
        let overflow = match overflow.as_str() {
            "pause" => Overflow::Pause,
            "drop_oldest" => Overflow::DropOldest,
            "drop_newest" => Overflow::DropNewest,
            "close" => Overflow::Close,
            _ => return Err(PyValueError::new_err(format!("unknown overflow {overflow:?}"))),
        };
        Ok(Self { only, overflow })
    }
}

/// When calls become a batch, and where it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchRules {
    pub(crate) limits: BatchLimits,
    pub(crate) executor: Executor,
    /// Whether the function is a generator of lists.
    pub(crate) yields: bool,
    /// Whether a call may be heavier than a batch: its function runs once for each batch of it.
    pub(crate) splits_calls: bool,
}

/// The attributes of `BatchRules` in `python/ucall/_functions/registration.py`.
#[derive(FromPyObject)]
pub(crate) struct BatchOptions {
    max_size: usize,
    max_wait_ms: f64,
    parallel: usize,
    /// Called with the arguments of a call, it returns its weight.
    pub(crate) weight: Option<Py<PyAny>>,
    max_weight: Option<u64>,
    slots: Option<usize>,
    process_count: usize,
    rows: bool,
}

impl BatchRules {
    fn new(
        options: &BatchOptions,
        executor: Executor,
        yields: bool,
        waiting_max: Option<usize>,
    ) -> PyResult<Self> {
        let wait_max = Duration::try_from_secs_f64(options.max_wait_ms / 1e3)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let &BatchOptions { max_size: size_max, parallel, process_count, .. } = options;
        // On one thread batches run in turn.
        let is_in_turn = executor == Executor::Inline && !yields;
        let parallel = if is_in_turn { 1 } else { parallel };
        let running_max = parallel.saturating_mul(process_count.max(1));
        let weight_max = options.max_weight;
        // One more for each process, which begins it by itself.
        let ahead_max = process_count;
        let limits =
            BatchLimits { size_max, wait_max, running_max, ahead_max, waiting_max, weight_max };
        Ok(Self { limits, executor, yields, splits_calls: options.rows })
    }
}

impl BatchRules {
    /// Checks that a call of this weight may be in a batch.
    pub(crate) fn check_weight(&self, weight: u64) -> Result<(), ConversionFault> {
        let weight_max = self.limits.weight_max.filter(|_| !self.splits_calls);
        let Some(max) = weight_max.filter(|max| weight > *max) else { return Ok(()) };
        let problem = format!("expected a weight of at most max_weight, {max}, got {weight}");
        Err(ConversionFault::value(problem))
    }
}

/// What the calls of a batch give the function for one parameter.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Column {
    /// A list with an item a call, as contexts are.
    #[default]
    List,
    /// One array, in which those of the calls are along a new first dimension.
    Stacked,
    /// One value, which all of them have.
    Scalar,
}

impl Column {
    /// Takes what `python/ucall/_functions/batches.py` adds to the type of a parameter.
    fn from_description(takes: Bound<'_, PyAny>) -> PyResult<(Self, Bound<'_, PyAny>)> {
        let Ok((name, inner)) = takes.extract::<(String, Bound<'_, PyAny>)>() else {
            return Ok((Self::List, takes));
        };
        Ok(match name.as_str() {
            "stacked" => (Self::Stacked, inner),
            "scalar" => (Self::Scalar, inner),
            _ => (Self::List, takes),
        })
    }
}

impl CallMode {
    /// Reads what `python/ucall/_functions/registration.py` describes: a name, and the rules of a
    /// batch.
    pub(crate) fn from_description(
        name: &str,
        batch: Option<&BatchOptions>,
        waiting_max: Option<usize>,
    ) -> PyResult<Self> {
        let (executor, yields) = match name {
            "inline" => (Executor::Inline, false),
            "task" => (Executor::Task, false),
            "thread" => (Executor::Thread, false),
            "generator" => (Executor::Inline, true),
            "async_generator" => (Executor::Task, true),
            "thread_generator" => (Executor::Thread, true),
            "future" if batch.is_none() => return Ok(Self::Future),
            _ => return Err(PyValueError::new_err(format!("unknown call mode {name:?}"))),
        };
        if let Some(&BatchOptions { slots: Some(count), .. }) = batch {
            return Ok(Self::Slots { count, waiting_max, executor });
        }
        if let Some(options) = batch {
            return BatchRules::new(options, executor, yields, waiting_max).map(Self::Batch);
        }
        Ok(match executor {
            _ if yields => Self::Generator(executor),
            Executor::Inline => Self::Inline,
            Executor::Task => Self::Task,
            Executor::Thread => Self::Thread,
        })
    }

    /// The limit of calls that wait for a thread, if so many may. Batchers and slots have others.
    pub(crate) fn waiting_limit(self, max: Option<usize>) -> Option<WaitingLimit> {
        match self {
            Self::Batch(_) | Self::Slots { .. } => None,
            _ => max.filter(|_| self.executor() == Some(Executor::Thread)).map(WaitingLimit::new),
        }
    }

    /// Where the function runs; `None` if elsewhere.
    pub(crate) fn executor(self) -> Option<Executor> {
        match self {
            Self::Inline => Some(Executor::Inline),
            Self::Task => Some(Executor::Task),
            Self::Thread => Some(Executor::Thread),
            Self::Future => None,
            Self::Batch(BatchRules { executor, .. })
            | Self::Generator(executor)
            | Self::Slots { executor, .. } => Some(executor),
        }
    }
}

impl Procedure {
    /// A procedure that no option says more about: of a method of MCP, a route or a check.
    pub(crate) fn new(
        name: String,
        callable: Py<PyAny>,
        signature: Option<Signature>,
        encode: Py<PyAny>,
        mode: CallMode,
    ) -> Self {
        Self {
            in_processes: ProcessFunction::of(&callable),
            name,
            callable,
            signature,
            encode,
            mode,
            waiting_limit: None,
            weigh: None,
            series: None,
            is_idempotent: false,
            stream: StreamRules::default(),
            access: FunctionAccess::default(),
            scopes: Arc::default(),
            is_plain: false,
            timeout: None,
            is_logged_as_slow: AtomicBool::new(false),
            route: None,
            mount: None,
            hooked: None,
            batch_times: OnceLock::new(),
        }
    }

    /// The procedure as its table and its calls share it.
    pub(crate) fn shared(self) -> SharedProcedure {
        Arc::new(DropAttached::new(self))
    }

    /// Its name, with those of the hooks that may hold up its calls.
    pub(crate) fn described_name(&self) -> String {
        match &self.hooked {
            Some(hooked) => format!("{} (with the hooks {})", self.name, hooked.names),
            None => self.name.clone(),
        }
    }

    /// The function without the hooks around it.
    pub(crate) fn function(&self) -> &Self {
        self.hooked.as_ref().map_or(self, |hooked| &hooked.function)
    }

    /// What the calls of a batch give for each parameter.
    pub(crate) fn columns(&self) -> impl Iterator<Item = Column> {
        let params = self.signature.as_ref().map(|signature| signature.params.iter());
        params.into_iter().flatten().map(|param| param.column)
    }

    /// Whether the params of a call can be read before its batch begins: no Python code runs then.
    pub(crate) fn is_read_natively(&self) -> bool {
        let are_native = |signature: &Signature| {
            signature.context.is_none()
                && signature.params.iter().all(|param| !param.convert.runs_code())
        };
        self.signature.as_ref().is_some_and(are_native)
    }

    /// Whether no param takes bytes, or what a part is beside them.
    pub(crate) fn takes_no_bytes(&self) -> bool {
        let Some(signature) = &self.signature else { return true };
        let params = signature.params.iter().enumerate();
        let mut params = params.filter(|(index, _)| signature.context != Some(*index));
        params.all(|(_, param)| !param.convert.may_take_bytes())
    }

    /// Whether the function is a generator.
    pub(crate) fn is_stream(&self) -> bool {
        match self.mode {
            CallMode::Generator(_) | CallMode::Slots { .. } => true,
            CallMode::Batch(rules) => rules.yields,
            _ => false,
        }
    }

    /// Whether the function takes its call's `ucall.Context`.
    pub(crate) fn takes_context(&self) -> bool {
        let signature_does = match &self.signature {
            Some(signature) => signature.context.is_some(),
            None => self.hooked.is_some(),
        };
        signature_does || matches!(self.mode, CallMode::Slots { .. })
    }

    /// Appends a result to `text`, which may grow to `len_max` bytes.
    #[inline]
    pub(crate) fn write(
        &self,
        text: &mut Vec<u8>,
        len_max: usize,
        result: &Bound<'_, PyAny>,
    ) -> Result<(), ConversionFault> {
        convert::write_with(text, len_max, result, self.encode.bind(result.py()))
    }

    /// Writes a result into the reply, unless the call is a notification. `results` takes its
    /// parts.
    #[inline]
    pub(crate) fn write_reply(
        &self,
        result: &Bound<'_, PyAny>,
        reply: &mut Reply<'_>,
        results: &mut Results,
    ) -> Result<(), ConversionFault> {
        if reply.is_notification() {
            return Ok(());
        }
        let (len_max, encode) = (reply.len_max(), self.encode.bind(result.py()));
        convert::write_results(reply.result(), len_max, result, Some(encode), results)
    }

    /// Whether the function answers the requests of a route without authentication.
    pub(crate) fn is_public_route(&self) -> bool {
        self.route.as_ref().is_some_and(|route| route.access == RouteAccess::Public)
    }

    /// [`Procedure::write`] for what a generator has yielded or returned, or for the result of a
    /// future. That of a route is bytes of its response.
    #[inline]
    pub(crate) fn write_item(
        &self,
        text: &mut Vec<u8>,
        len_max: usize,
        result: &Bound<'_, PyAny>,
    ) -> Result<(), ConversionFault> {
        match result.cast::<PyBytes>() {
            _ if self.route.is_none() => self.write(text, len_max, result),
            Ok(part) if part.as_bytes().len() > len_max => Err(ConversionFault::TooLarge),
            Ok(part) => {
                text.extend_from_slice(part.as_bytes());
                Ok(())
            }
            // It has returned nothing, after its last part.
            Err(_) => Ok(()),
        }
    }

    /// Whether the log has named it as slow; sets that.
    pub(crate) fn is_logged_as_slow(&self) -> bool {
        self.is_logged_as_slow.swap(true, Ordering::Relaxed)
    }
}

/// How a function takes its arguments.
///
/// Slots are in the order of the arguments: positional parameters first, then keyword-only ones.
/// Defaults fill missing params, so all positional parameters go by position and the keyword names
/// never change.
#[derive(Debug, Default)]
pub(crate) struct Signature {
    pub(crate) params: Vec<Param>,
    /// The number of params that go by position.
    pub(crate) positional: usize,
    /// The type of `*args`.
    pub(crate) rest: Option<Convert>,
    /// The types of `**kwargs`.
    pub(crate) extra: Option<Extra>,
    /// The names of the keyword-only ones, in order; `None` without any.
    pub(crate) names: Option<Py<PyTuple>>,
    /// The slot of the call's `ucall.Context`.
    pub(crate) context: Option<usize>,
}

/// The types of `**kwargs`.
#[derive(Debug)]
pub(crate) enum Extra {
    /// The type of all values.
    Any(Convert),
    /// The keys that are taken, each with its type: `**kwargs: Unpack[TypedDict]`.
    Keys(Vec<(String, Convert)>),
}

impl Extra {
    /// The type of the value of a key, if that is taken.
    pub(crate) fn of(&self, key: &[u8]) -> Option<&Convert> {
        match self {
            Self::Any(convert) => Some(convert),
            Self::Keys(keys) => {
                keys.iter().find(|(name, _)| name.as_bytes() == key).map(|(_, convert)| convert)
            }
        }
    }

    /// The names of the keys, if they are known.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let keys = match self {
            Self::Any(_) => &[][..],
            Self::Keys(keys) => keys,
        };
        keys.iter().map(|(name, _)| name.as_str())
    }
}

/// One named parameter.
#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: String,
    /// Its name as the key of a JSON object, with quotes and colon.
    pub(crate) key: Box<[u8]>,
    /// Whether it may be given by name.
    pub(crate) by_name: bool,
    pub(crate) convert: Convert,
    pub(crate) default: Option<Py<PyAny>>,
    /// Of a function that takes batches.
    pub(crate) column: Column,
}

impl Param {
    pub(crate) fn new(
        name: String,
        by_name: bool,
        convert: Convert,
        default: Option<Py<PyAny>>,
    ) -> Self {
        let key = format!("\"{name}\":").into_bytes().into();
        Self { name, key, by_name, convert, default, column: Column::default() }
    }
}

/// A parameter as `python/ucall/_functions/signatures.py` describes it: name, kind, type, whether
/// it has a default, and the default.
type Description<'py> = (String, u8, Bound<'py, PyAny>, bool, Py<PyAny>);

/// The described type of a parameter that takes the call's context.
const CONTEXT: &str = "context";

/// The values of `inspect.Parameter.kind`.
mod kind {
    pub(super) const POSITIONAL_ONLY: u8 = 0;
    pub(super) const POSITIONAL_OR_KEYWORD: u8 = 1;
    pub(super) const VAR_POSITIONAL: u8 = 2;
    pub(super) const KEYWORD_ONLY: u8 = 3;
    pub(super) const VAR_KEYWORD: u8 = 4;
}

impl Signature {
    /// Reads a description of all parameters, in the order of the signature.
    pub(crate) fn from_description(description: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut signature = Self::default();
        for param in description {
            signature.add(param.extract::<Description<'_>>()?)?;
        }
        signature.names = signature.keyword_names(description.py())?;
        Ok(signature)
    }

    fn add(&mut self, (name, kind, takes, optional, default): Description<'_>) -> PyResult<()> {
        if let Ok(keys) = takes.cast::<PyList>() {
            let keys = keys.iter().map(|key| {
                let (name, takes) = key.extract::<(String, Bound<'_, PyAny>)>()?;
                Ok((name, Convert::from_description(&takes)?))
            });
            self.extra = Some(Extra::Keys(keys.collect::<PyResult<_>>()?));
            return Ok(());
        }
        let (column, takes) = Column::from_description(takes)?;
        let is_context = takes.cast::<PyString>().is_ok_and(|takes| takes == CONTEXT);
        let convert = match is_context {
            true => Convert::Any,
            false => Convert::from_description(&takes)?,
        };
        match kind {
            kind::VAR_POSITIONAL => self.rest = Some(convert),
            kind::VAR_KEYWORD => self.extra = Some(Extra::Any(convert)),
            kind::POSITIONAL_ONLY | kind::POSITIONAL_OR_KEYWORD | kind::KEYWORD_ONLY => {
                self.positional += usize::from(kind != kind::KEYWORD_ONLY);
                let by_name = kind != kind::POSITIONAL_ONLY && !is_context;
                if is_context {
                    self.context = Some(self.params.len());
                }
                let default = optional.then_some(default);
                self.params.push(Param { column, ..Param::new(name, by_name, convert, default) });
            }
            _ => return Err(PyValueError::new_err(format!("unknown kind of parameter {kind}"))),
        }
        Ok(())
    }

    fn keyword_names(&self, py: Python<'_>) -> PyResult<Option<Py<PyTuple>>> {
        let names = self.params.iter().skip(self.positional).map(|param| &param.name);
        if names.len() == 0 {
            return Ok(None);
        }
        Ok(Some(PyTuple::new(py, names)?.unbind()))
    }
}
