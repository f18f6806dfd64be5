//! Drives a session manager with an engine, on a thread of its own.
//!
//! A turn sends the output of the links, waits, and passes received bytes to the manager. One
//! [`Transport`], chosen at the start, carries the links. Other threads reach this one by a
//! [`Handle`]: they put a message into the outbox or send a command, and wake the thread, which
//! costs a system call only when it sleeps.

mod dialer;
mod endpoint;
mod external_link;
mod external_links;
mod handle;
mod inherited;
mod mqtt_links;
mod secure;
mod socket_links;
mod sockets;
mod transport;
mod turn;

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Instant;

use ucall_engine::posix::Posix;
#[cfg(target_os = "linux")]
use ucall_engine::uring::{self, Uring};
use ucall_engine::{Engine, Mailbox, Waker};

use crate::accepted_names::AcceptedNames;
use crate::backoff::Backoff;
use crate::identity::Identity;
use crate::mqtt::{Broker, Login};
use crate::options::Options;
use crate::session_manager::SessionManager;

pub use endpoint::Endpoint;
pub use external_link::ExternalLink;
pub use handle::{ConnectionState, Handle};
pub use secure::Security;

use dialer::Dialer;
use endpoint::Listener;
use external_links::ExternalLinks;
use handle::Command;
use inherited::InheritedSockets;
use mqtt_links::MqttLinks;
use socket_links::SocketLinks;
use sockets::Sockets;
use transport::{Context, Transport};
use turn::Driver;

/// What a communicator is made from.
#[derive(Debug)]
pub struct Settings {
    /// Its id.
    pub identity: Identity,
    /// Whether it accepts links or makes one.
    pub is_server: bool,
    /// The address.
    pub endpoint: Endpoint,
    /// The credentials at a broker, if one listens at the endpoint.
    pub broker: Option<Login>,
    /// Its limits.
    pub options: Options,
    /// The names that its program accepts in messages.
    pub accepted: AcceptedNames,
    /// TLS of its own links or of the connection to the broker, if wanted.
    pub security: Option<Box<dyn Security>>,
    /// The features of io_uring, if that is the engine.
    #[cfg(target_os = "linux")]
    pub uring: Option<uring::Features>,
}

/// Starts a communicator's thread. A server listens when this returns; a client has not connected.
pub fn start(settings: Settings) -> io::Result<Arc<Handle>> {
    let waker = Arc::new(OnceLock::<Waker>::new());
    let waker_slot = waker.clone();
    let mailbox = Mailbox::new(move || {
        // Before there is an engine the thread does not sleep. A failure cannot be reported.
        let _ = waker_slot.get().map(Waker::wake);
    });
    #[cfg(target_os = "linux")]
    let features = settings.uring;
    let Settings { identity, is_server, options, accepted, security, endpoint, broker, .. } =
        settings;
    let now = Instant::now();
    let links = Links::new(is_server, endpoint, broker, &options, now)?;
    let address = links.address();
    let wake_flag = mailbox.wake_flag().clone();
    let mut manager = SessionManager::new(identity, is_server, options, wake_flag, random()?, now);
    manager.announce(accepted);
    let inherited = Arc::<InheritedSockets>::default();
    let handle = Handle::new(&manager, mailbox.clone(), address, inherited.clone());
    let thread = DriverParts { manager, mailbox, waker, links, security, inherited };
    let (report, started) = mpsc::channel();
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

/// The transport of a communicator, before there is an engine.
enum Links {
    Sockets(Option<Listener>, Dialer),
    Mqtt(Box<MqttLinks>),
    External,
}

impl Links {
    fn new(
        is_server: bool,
        endpoint: Endpoint,
        broker: Option<Login>,
        options: &Options,
        now: Instant,
    ) -> io::Result<Self> {
        if let Some(login) = broker {
            let backoff = Backoff::new(options.reconnect);
            let broker = Broker::new(login, is_server, options.keepalive, backoff, random()?, now);
            let links = MqttLinks::new(broker, Dialer::new(endpoint), now);
            return Ok(Self::Mqtt(Box::new(links)));
        }
        if let Endpoint::External = endpoint {
            return Ok(Self::External);
        }
        let listener = if is_server { Some(endpoint.listen()?) } else { None };
        Ok(Self::Sockets(listener, Dialer::new(endpoint)))
    }

    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Sockets(listener, _) => listener.as_ref().and_then(Listener::address),
            Self::Mqtt(..) | Self::External => None,
        }
    }

    fn transport<E: Engine>(self, sockets: &mut Sockets<E>) -> io::Result<Box<dyn Transport<E>>> {
        Ok(match self {
            Self::Sockets(listener, dialer) => {
                Box::new(SocketLinks::new(listener, dialer, sockets)?)
            }
            Self::Mqtt(links) => links,
            Self::External => Box::new(ExternalLinks::default()),
        })
    }
}

/// Draws secrets.
fn random() -> io::Result<impl FnMut() -> u128 + Send + 'static> {
    let mut source = File::open("/dev/urandom")?;
    Ok(move || {
        let mut bytes = [0; 16];
        match source.read_exact(&mut bytes) {
            Ok(()) => u128::from_ne_bytes(bytes),
            // It has been read before, and does not fail. Zero is never a secret.
            Err(_) => 0,
        }
    })
}

/// What the thread needs to build its driver.
struct DriverParts {
    manager: SessionManager,
    mailbox: Mailbox<Command>,
    waker: Arc<OnceLock<Waker>>,
    links: Links,
    security: Option<Box<dyn Security>>,
    inherited: Arc<InheritedSockets>,
}

impl DriverParts {
    fn run<E: Engine>(self, engine: io::Result<E>, report: &mpsc::Sender<io::Result<()>>) {
        match engine.and_then(|engine| self.driver(engine)) {
            Err(error) => {
                // `start` waits for this.
                let _ = report.send(Err(error));
            }
            Ok(mut driver) => {
                let _ = report.send(Ok(()));
                driver.run();
            }
        }
    }

    fn driver<E: Engine>(self, engine: E) -> io::Result<Driver<E>> {
        // It is set once, here.
        let _ = self.waker.set(engine.waker());
        let log_queue = self.manager.log_queue.clone();
        let mut sockets = Sockets::new(engine, self.inherited, self.security, log_queue);
        let transport = self.links.transport(&mut sockets)?;
        let now = sockets.engine.clock().now();
        let context = Context { manager: self.manager, sockets, now };
        Ok(Driver::new(context, transport, self.mailbox))
    }
}
