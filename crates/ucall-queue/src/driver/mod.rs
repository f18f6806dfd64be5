//! Drives a hub with an engine, on a thread of its own.
//!
//! A turn sends what the hub has, waits, and hands in what came. Others reach the thread by
//! [`Handle`]: they leave a command, a message in the outbox or the number of a session that was
//! taken from, and ring the doorbell, which costs a system call only when the thread sleeps.

mod dialer;
mod endpoint;
mod external_transport;
mod handle;
mod inherited;
mod secure;
mod turn;

use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, Mailbox, Waker};

use crate::broker::Login;
use crate::identity::Identity;
use crate::options::Options;
use crate::session_manager::SessionManager;

pub use endpoint::Endpoint;
pub use external_transport::ExternalTransport;
pub use handle::Handle;
pub use secure::Security;

use endpoint::Listener;
use handle::Command;
use inherited::InheritedSockets;
use turn::{BrokerConnection, Driver};

/// What a communicator is to be.
#[derive(Debug)]
pub struct Settings {
    /// Who it is.
    pub identity: Identity,
    /// Whether others come to it, or it goes to them.
    pub is_server: bool,
    /// Where.
    pub endpoint: Endpoint,
    /// A broker listens at the endpoint, and this is who we are to it.
    pub broker: Option<Login>,
    /// Its limits.
    pub options: Options,
    /// TLS, if links of its own, or the connection to the broker, are to have that.
    pub security: Option<Box<dyn Security>>,
    /// io_uring with these features, if it is to run on that.
    #[cfg(target_os = "linux")]
    pub uring: Option<uring::Features>,
}

/// Starts a communicator's thread. A server listens when this returns; a client has not connected.
pub fn start(settings: Settings) -> io::Result<Arc<Handle>> {
    let listener = match settings.is_server && settings.broker.is_none() {
        true => settings.endpoint.listen()?,
        false => None,
    };
    let address = listener.as_ref().and_then(Listener::address);
    let waker = Arc::new(OnceLock::<Waker>::new());
    let waker_slot = waker.clone();
    let mailbox = Mailbox::new(move || {
        // Before there is an engine the thread does not sleep. A failure cannot be reported.
        let _ = waker_slot.get().map(Waker::wake);
    });
    let Settings { identity, is_server, options, security, endpoint, .. } = settings;
    let now = Instant::now();
    let broker_connection = match settings.broker {
        Some(login) => Some(BrokerConnection::new(login, is_server, &options, random()?, now)),
        None => None,
    };
    let wake_flag = mailbox.wake_flag().clone();
    let manager = SessionManager::new(identity, is_server, options, wake_flag, random()?, now);
    let inherited = Arc::<InheritedSockets>::default();
    let handle = Handle::new(&manager, mailbox.clone(), address, inherited.clone());
    let thread = DriverParts {
        manager,
        mailbox,
        waker,
        listener,
        endpoint,
        security,
        broker_connection,
        inherited,
    };
    let (report, started) = mpsc::channel();
    #[cfg(target_os = "linux")]
    let features = settings.uring;
    thread::Builder::new().name("ucall-queue".to_owned()).spawn(move || {
        #[cfg(target_os = "linux")]
        if let Some(features) = features {
            let config = uring::Config { queue_depth: 64, ..uring::Config::default() };
            return thread.run(Uring::new(config, features), &report);
        }
        thread.run(Posix::new(), &report);
    })?;
    started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
    Ok(Arc::new(handle))
}

/// What the thread is made of.
struct DriverParts {
    manager: SessionManager,
    mailbox: Mailbox<Command>,
    waker: Arc<OnceLock<Waker>>,
    listener: Option<Listener>,
    endpoint: Endpoint,
    security: Option<Box<dyn Security>>,
    broker_connection: Option<BrokerConnection>,
    inherited: Arc<InheritedSockets>,
}

/// Draws secrets.
fn random() -> io::Result<impl FnMut() -> u128 + Send + 'static> {
    let mut source = File::open("/dev/urandom")?;
    Ok(move || {
        let mut bytes = [0; 16];
        match source.read_exact(&mut bytes) {
            Ok(()) => u128::from_ne_bytes(bytes),
            // It has been read before, and does not fail. Zero is nobody's secret.
            Err(_) => 0,
        }
    })
}

impl DriverParts {
    fn run<E: Engine>(self, engine: io::Result<E>, report: &mpsc::Sender<io::Result<()>>) {
        let driver = engine.and_then(|engine| {
            // It is set once, here.
            let _ = self.waker.set(engine.waker());
            Driver::new(engine, self)
        });
        match driver {
            Err(error) => {
                // Whoever started us waits for this.
                let _ = report.send(Err(error));
            }
            Ok(mut driver) => {
                let _ = report.send(Ok(()));
                driver.run();
            }
        }
    }
}
