//! Listeners whose connections are few and short.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Sleep;

use super::MAX_CONNECTIONS;

/// Something that accepts connections.
pub(super) trait Accept: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&mut self) -> io::Result<Self::Stream> {
        tokio::net::TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Serves `router` on `listener`, each connection for at most `life`, until the runtime ends or the task is
/// aborted.
pub(super) fn spawn<A: Accept>(listener: A, router: Router, life: Duration) -> AbortHandle {
    let limited = Limited { listener, life, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(limited, router).await {
            tracing::error!("the admin listener ended: {error}");
        }
    });
    task.abort_handle()
}

struct Limited<A> {
    listener: A,
    life: Duration,
    permits: Arc<Semaphore>,
}

impl<A: Accept> Listener for Limited<A> {
    type Io = Brief<A::Stream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, ()) {
        loop {
            // The semaphore is never closed; were it, connections would go without a permit.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok(stream) => {
                    let ends = Box::pin(tokio::time::sleep(self.life));
                    return (Brief { stream, ends, _permit: permit }, ());
                }
                // Out of file descriptors, most likely: they come back when others close.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that fails once its time is over.
pub(super) struct Brief<S> {
    stream: S,
    ends: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<S> Brief<S> {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.ends.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Brief<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Brief<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
