//! The admin socket: what it answers reveals traffic, so only its owner may connect; on Windows it is a named pipe, and
//! only administrators may.

#[cfg(unix)]
pub(super) use unix::AdminSocket;
#[cfg(unix)]
pub(crate) use unix::{DEFAULT_PATH, PATH_WANTS, is_path};
#[cfg(windows)]
pub(super) use windows::AdminSocket;
#[cfg(windows)]
pub(crate) use windows::{DEFAULT_PATH, PATH_WANTS, is_path};

#[cfg(unix)]
mod unix {
    use std::fs::{self, DirBuilder, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    use axum::Router;

    use crate::admin::{AdminError, CONNECTION_LIFE, limits};

    /// Where it is unless configured.
    pub(crate) const DEFAULT_PATH: &str = "/run/windlass/admin.sock";

    /// What a path must be.
    pub(crate) const PATH_WANTS: &str = "an absolute path of at most 100 bytes";

    /// Whether a socket can be made there.
    pub(crate) fn is_path(text: &str) -> bool {
        Path::new(text).is_absolute() && text.len() <= 100
    }

    /// A bound admin socket of mode 0600.
    #[derive(Debug)]
    pub(in crate::admin) struct AdminSocket {
        listener: UnixListener,
        file: SocketFile,
    }

    /// The file of a socket; dropping it removes the file.
    #[derive(Debug)]
    pub(in crate::admin) struct SocketFile(PathBuf);

    impl AdminSocket {
        /// Only the default's folder is made: another that is missing is a mistake in the path.
        pub(in crate::admin) fn bind(path: &Path) -> Result<Self, AdminError> {
            let failed = |source| AdminError::Socket { path: path.to_owned(), source };
            if UnixStream::connect(path).is_ok() {
                return Err(AdminError::Running { path: path.to_owned() });
            }
            let folder = path.parent().unwrap_or(Path::new("/"));
            if Some(folder) == Path::new(DEFAULT_PATH).parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
            } else if !folder.is_dir() {
                return Err(AdminError::NoFolder { path: path.to_owned(), folder: folder.to_owned() });
            }
            let listener = listen(path).map_err(failed)?;
            Ok(Self { listener, file: SocketFile(path.to_owned()) })
        }

        /// What to serve, to be called inside a runtime, and the file.
        pub(in crate::admin) fn split(self) -> (impl FnOnce(Router) + Send, SocketFile) {
            let listener = self.listener;
            let serve = move |router| match tokio::net::UnixListener::from_std(listener) {
                Ok(listener) => drop(limits::spawn(listener, router, CONNECTION_LIFE)),
                Err(error) => tracing::error!("the admin socket is not served: {error}"),
            };
            (serve, self.file)
        }
    }

    fn listen(path: &Path) -> io::Result<UnixListener> {
        match fs::symlink_metadata(path) {
            // Nobody answered on it: it was left behind.
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket")),
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    impl limits::Accept for tokio::net::UnixListener {
        type Stream = tokio::net::UnixStream;

        async fn accept(&mut self) -> io::Result<Self::Stream> {
            tokio::net::UnixListener::accept(self).await.map(|(stream, _)| stream)
        }
    }

    impl Drop for SocketFile {
        fn drop(&mut self) {
            if let Err(error) = fs::remove_file(&self.0)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("cannot remove {}: {error}", self.0.display());
            }
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::io;
    use std::os::windows::io::AsHandle;
    use std::path::{Path, PathBuf};

    use axum::Router;
    use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
    use windlass_dataplane::device;

    use crate::admin::{AdminError, CONNECTION_LIFE, limits};

    /// Where it is unless configured.
    pub(crate) const DEFAULT_PATH: &str = r"\\.\pipe\windlass-admin";

    /// What a path must be.
    pub(crate) const PATH_WANTS: &str = r"a pipe of this computer, \\.\pipe\NAME";

    /// Whether a pipe can be made there.
    pub(crate) fn is_path(text: &str) -> bool {
        let name = text.strip_prefix(r"\\.\pipe\");
        name.is_some_and(|name| !name.is_empty() && name.len() <= 200 && !name.contains('\\'))
    }

    /// A named pipe that only LocalSystem and administrators may open.
    #[derive(Debug)]
    pub(in crate::admin) struct AdminSocket(PathBuf);

    impl AdminSocket {
        /// A pipe belongs to a runtime, so it is tried here and made when it is served.
        pub(in crate::admin) fn bind(path: &Path) -> Result<Self, AdminError> {
            let try_it = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
                let _inside = runtime.enter();
                make(path, true).map(drop)
            };
            match try_it() {
                Ok(()) => Ok(Self(path.to_owned())),
                // What Windows says to a second first instance.
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    Err(AdminError::Running { path: path.to_owned() })
                }
                Err(source) => Err(AdminError::Socket { path: path.to_owned(), source }),
            }
        }

        /// What to serve, to be called inside a runtime; nothing is left to remove.
        pub(in crate::admin) fn split(self) -> (impl FnOnce(Router) + Send, ()) {
            let serve = move |router| match make(&self.0, true) {
                Ok(pipe) => {
                    drop(limits::spawn(Listener { path: self.0, next: pipe }, router, CONNECTION_LIFE))
                }
                Err(error) => tracing::error!("the admin pipe is not served: {error}"),
            };
            (serve, ())
        }
    }

    /// There is always an instance for the next client: without one the pipe, and who may open it, would be gone.
    struct Listener {
        path: PathBuf,
        next: NamedPipeServer,
    }

    impl limits::Accept for Listener {
        type Stream = NamedPipeServer;

        async fn accept(&mut self) -> io::Result<NamedPipeServer> {
            self.next.connect().await?;
            Ok(std::mem::replace(&mut self.next, make(&self.path, false)?))
        }
    }

    /// An instance of the pipe. Between its making and its restriction others could open it for reading; they would
    /// read nothing, as only those who can write get answers.
    fn make(path: &Path, first: bool) -> io::Result<NamedPipeServer> {
        let mut options = ServerOptions::new();
        let pipe =
            options.first_pipe_instance(first).reject_remote_clients(true).write_dac(true).create(path)?;
        device::restrict_to_administrators(pipe.as_handle())?;
        Ok(pipe)
    }
}
