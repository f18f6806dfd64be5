//! Unix sockets that listen, and their files.
//!
//! The file stays when its server is killed. It is replaced only if no server listens on it any
//! more. The kernel closes an io_uring's sockets a moment after its process has ended, and the new
//! server waits for that. Servers that start at the same time are serialized by a lock on the
//! folder. Any process that can read the folder may hold that lock for ever, so the wait for it is
//! short, and it is never held while waiting for the kernel.

use std::fs::{self, File, Permissions};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use rustix::fs::OFlags;
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::listen::BACKLOG;

/// How long to wait for the lock on a folder, which a starting server holds for microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait until the kernel has closed a dead server's socket: milliseconds, or more under
/// load.
const SOCKET_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often either is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The file of a Unix socket, removed when dropped, if it is still the same file.
#[derive(Debug)]
pub struct UnixFile {
    path: PathBuf,
    identity: FileIdentity,
    /// The process that removes it.
    process: AtomicU32,
}

impl UnixFile {
    /// This process removes the file: of a process and its forked child, the one that serves.
    pub fn adopt(&self) {
        self.process.store(std::process::id(), Ordering::Relaxed);
    }
}

/// Distinguishes a file from its successor: inode numbers are reused at once.
type FileIdentity = (u64, u64, i64, i64);

fn identity(found: &fs::Metadata) -> FileIdentity {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

/// Binds a Unix socket at `path` and listens. Processes that may write to the file may connect;
/// `mode`, such as `0o600`, sets these. May sleep: up to a second for the folder's lock, and up to
/// ten until the kernel has closed the socket of a dead server.
///
/// # Errors
/// `AddrInUse` if a server listens there, or if the file is not a socket; `TimedOut` if another
/// process holds the folder's lock.
pub fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, UnixFile)> {
    let explain = |error: io::Error| {
        let reason = format!("cannot listen on {}: {error}", path.display());
        io::Error::new(error.kind(), reason)
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let deadline = Instant::now() + SOCKET_RELEASE_TIMEOUT;
    loop {
        let locked = lock(folder.unwrap_or(Path::new("."))).map_err(explain)?;
        if remove_stale_socket(path, Instant::now() < deadline)? {
            return bind(path, mode).map_err(explain);
        }
        // Meanwhile other servers may start in this folder.
        drop(locked);
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Locks a folder until the result is dropped.
fn lock(folder: &Path) -> io::Result<File> {
    let opened = File::open(folder)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while let Err(Errno::WOULDBLOCK) = flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        if Instant::now() >= deadline {
            let folder = folder.display();
            let reason = format!(
                "another process keeps {folder} locked (flock): end it, `lslocks` names it, or put \
                 the socket into a folder that no other user may read"
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
        }
        thread::sleep(RETRY_INTERVAL);
    }
    // Where folders cannot be locked, the operator must not start servers at the same time.
    Ok(opened)
}

fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, UnixFile)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // Linux makes the file with the socket's mode, so that it is never open to more.
    fchmod(&socket, Mode::from_raw_mode(mode as _)).unwrap_or(());
    socket.bind(&SockAddr::unix(path)?)?;
    let made = fs::symlink_metadata(path)?;
    let file = UnixFile {
        // The process may change its directory, as daemon(3) does.
        path: absolute(path)?,
        identity: identity(&made),
        process: AtomicU32::new(std::process::id()),
    };
    if made.permissions().mode() & 0o777 != mode {
        // The process's umask has cleared some bits.
        set_mode(path, mode)?;
    }
    // Accepted sockets inherit it.
    refuse_descriptors(&socket);
    socket.listen(BACKLOG)?;
    Ok((UnixListener::from(std::os::fd::OwnedFd::from(socket)), file))
}

/// Makes the kernel reject descriptors that peers send over a Unix socket (`SO_PASSRIGHTS`, Linux
/// 6.16). The receiving thread would have to close them, and a close may block: for a socket with
/// `SO_LINGER`, as long as the peer has chosen. Older kernels lack the option, and the socket stays
/// unchanged.
#[cfg(target_os = "linux")]
pub(crate) fn refuse_descriptors(socket: &Socket) {
    // The same number on every architecture that Rust supports but sparc.
    const SO_PASSRIGHTS: libc::c_int = if cfg!(target_arch = "sparc64") { 92 } else { 83 };
    let refused: libc::c_int = 0;
    // SAFETY: the kernel reads one number, which outlives the call.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const refused).cast(),
            size_of_val(&refused) as libc::socklen_t,
        )
    };
}

/// Does nothing: only Linux has such an option.
#[cfg(not(target_os = "linux"))]
pub(crate) fn refuse_descriptors(_socket: &Socket) {}

/// Changes the mode of the socket at `path`, but of no file or link that another process may have
/// put there meanwhile.
#[cfg(target_os = "linux")]
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("another process has replaced the file"));
    }
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(opened, Permissions::from_mode(mode))
}

#[cfg(not(target_os = "linux"))]
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Removes the file of a dead server. `false`: the kernel has not closed that server's socket yet,
/// and the caller has to wait.
fn remove_stale_socket(path: &Path, may_wait: bool) -> io::Result<bool> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(true) };
    let in_use = |what: &str| {
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{}: {what}", path.display())))
    };
    if !found.file_type().is_socket() {
        return in_use("the file is not a socket");
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A server whose queue is full also listens.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map(|()| true)
        }
        Ok(()) if may_wait && has_owner_ended(&probe) => Ok(false),
        _ => in_use("it is in use: another process listens there already"),
    }
}

/// Whether the process has ended that made the socket which `probe` is connected to.
#[cfg(target_os = "linux")]
fn has_owner_ended(probe: &Socket) -> bool {
    let Ok(owner) = rustix::net::sockopt::socket_peercred(probe) else { return false };
    // A process that was not waited for keeps its status: after the name, in brackets.
    let status = fs::read_to_string(format!("/proc/{}/stat", owner.pid));
    let is_dead = |status: String| status.rsplit(") ").next().is_some_and(|it| it.starts_with('Z'));
    rustix::process::test_kill_process(owner.pid) == Err(Errno::SRCH) || status.is_ok_and(is_dead)
}

#[cfg(not(target_os = "linux"))]
fn has_owner_ended(_probe: &Socket) -> bool {
    false
}

impl Drop for UnixFile {
    fn drop(&mut self) {
        let is_ours = |found: fs::Metadata| identity(&found) == self.identity;
        // A forked child must not remove its parent's file.
        let process = *self.process.get_mut();
        if process == std::process::id() && fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            fs::remove_file(&self.path).unwrap_or(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;

    /// A folder for one test, removed on drop.
    fn folder() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_socket_file_has_its_mode_and_is_removed_with_its_server() {
        let folder = folder();
        let path = folder.path().join("socket");
        for mode in [0o600, 0o666] {
            let (_listener, file) = bind_unix(&path, mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            UnixStream::connect(&path).unwrap();
            drop(file);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_used_one_is_not() {
        let folder = folder();
        let path = folder.path().join("socket");
        let (listener, file) = bind_unix(&path, 0o600).unwrap();
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("listens there already"), "{error}");
        drop(listener);
        let (_listener, _file) = bind_unix(&path, 0o600).unwrap();
        // The first server's file is gone; its successor's file is another.
        drop(file);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_link_in_the_place_of_the_socket_is_not_followed() {
        let folder = folder();
        let path = folder.path().join("socket");
        let precious = path.with_file_name("precious");
        fs::write(&precious, "").unwrap();
        fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let error = set_mode(&path, 0o666).unwrap_err();
        assert!(error.to_string().contains("another process has replaced"), "{error}");
        assert_eq!(fs::metadata(&precious).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_lock_of_another_process_is_waited_for_until_a_timeout() {
        let folder = folder();
        let path = folder.path().join("socket");
        let locked = File::open(folder.path()).unwrap();
        flock(&locked, FlockOperation::LockExclusive).unwrap();
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("`lslocks` names it"), "{error}");
        assert!(!path.exists());
        // The other thread may time out before this one gets a processor.
        let has_waited = |_| {
            let path = path.clone();
            let starting = thread::spawn(move || bind_unix(&path, 0o600).map(drop));
            thread::sleep(5 * RETRY_INTERVAL);
            flock(&locked, FlockOperation::Unlock).unwrap();
            let started = starting.join().unwrap();
            flock(&locked, FlockOperation::LockExclusive).unwrap();
            started.is_ok()
        };
        assert!((0..50).any(has_waited));
    }

    #[test]
    fn a_file_of_another_kind_is_never_replaced() {
        let folder = folder();
        let path = folder.path().join("socket");
        fs::write(&path, "precious").unwrap();
        let error = bind_unix(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let error = bind_unix(Path::new("/nowhere/at/all"), 0o600).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
