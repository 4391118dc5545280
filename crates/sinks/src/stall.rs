//! A connection that fails if no data moves for a while.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Servers that work for long send progress every few seconds.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_mins(1);

/// A read fails if no byte was read or written for `limit`.
pub(crate) struct StallLimited<S> {
    stream: S,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl<S> StallLimited<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, deadline: Box::pin(sleep(limit)) }
    }

    fn restart_limit(&mut self) {
        self.deadline.as_mut().reset(Instant::now() + self.limit);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(outcome) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            self.restart_limit();
            return Poll::Ready(outcome);
        }
        ready!(self.deadline.as_mut().poll(cx));
        let why = format!("the server was silent for {} s", self.limit.as_secs_f32());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimited<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        self.restart_limit();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        self.restart_limit();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_data_times_out_and_one_with_data_does_not() {
        let (client, mut server) = tokio::io::duplex(64);
        let mut client = StallLimited::new(client, Duration::from_secs(10));
        for _ in 0..3 {
            sleep(Duration::from_secs(6)).await;
            server.write_all(b"x").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
        }
        sleep(Duration::from_secs(6)).await;
        client.write_all(b"y").await.unwrap();
        let before = Instant::now();
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(before.elapsed().as_secs(), 10);
    }
}
