//! The admin socket: what it answers reveals traffic, so only its owner may connect.

#[cfg(not(unix))]
pub(super) use elsewhere::AdminSocket;
#[cfg(unix)]
pub(super) use unix::AdminSocket;

#[cfg(unix)]
mod unix {
    use std::fs::{self, DirBuilder, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    use axum::Router;

    use crate::admin::{AdminError, CONNECTION_LIFE, limits};

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
        pub(in crate::admin) fn bind(path: &Path) -> Result<Self, AdminError> {
            let failed = |source| AdminError::Socket { path: path.to_owned(), source };
            if UnixStream::connect(path).is_ok() {
                return Err(AdminError::Running { path: path.to_owned() });
            }
            let listener = listen(path).map_err(failed)?;
            Ok(Self { listener, file: SocketFile(path.to_owned()) })
        }

        /// What to serve, to be called inside a runtime, and the file.
        pub(in crate::admin) fn split(self) -> (impl FnOnce(Router) + Send, SocketFile) {
            let listener = self.listener;
            let serve = move |router| match tokio::net::UnixListener::from_std(listener) {
                Ok(listener) => limits::spawn(listener, router, CONNECTION_LIFE),
                Err(error) => tracing::error!("the admin socket is not served: {error}"),
            };
            (serve, self.file)
        }
    }

    fn listen(path: &Path) -> io::Result<UnixListener> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
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

#[cfg(not(unix))]
mod elsewhere {
    use std::path::Path;

    use axum::Router;

    use crate::admin::AdminError;

    /// Nothing answers here: this platform has no Unix sockets with modes.
    #[derive(Debug)]
    pub(in crate::admin) struct AdminSocket;

    impl AdminSocket {
        pub(in crate::admin) fn bind(_path: &Path) -> Result<Self, AdminError> {
            Ok(Self)
        }

        pub(in crate::admin) fn split(self) -> (impl FnOnce(Router) + Send, ()) {
            (|_| (), ())
        }
    }
}
