//! Connections: few at a time, none for ever.

use crate::api;
use crate::door::{Door, PATIENCE};
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use regard_model::Model;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

/// Connections that are served at a time.
const CONNECTIONS: usize = 16;
/// Bytes of a request's headers, at most.
const HEADERS: usize = 16 << 10;
/// Those that are told at a time that there are too many.
const REFUSED: usize = 64;

/// A server that listens, and has not begun to answer.
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    door: Arc<Door>,
    models: Vec<Model>,
    stop: watch::Sender<bool>,
}

/// Ends a server, from any thread.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// End it; answers that are on their way are let go.
    pub fn stop(&self) {
        let _ = self.0.send(true);
    }
}

impl Server {
    /// Listen on this machine; port 0 takes any that is free.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn bind(models: Vec<Model>, port: u16) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        listener.set_nonblocking(true)?;
        let door = Arc::new(Door::new(listener.local_addr()?.port())?);
        Ok(Self { listener, door, models, stop: watch::Sender::new(false) })
    }

    /// Where it is, without the token.
    ///
    /// # Errors
    /// None, short of a defect.
    pub fn origin(&self) -> std::io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// The address to open, with the token behind `#`, which browsers keep to themselves.
    ///
    /// # Errors
    /// None, short of a defect.
    pub fn address(&self) -> std::io::Result<String> {
        Ok(format!("{}/#token={}", self.origin()?, self.door.token()))
    }

    /// What ends it.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Answer until it is stopped.
    ///
    /// # Errors
    /// When the runtime cannot be started.
    pub fn serve(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).max_blocking_threads(8).enable_all().build()?;
        let served = runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener)?;
            let router = api::router(self.models, self.door);
            let mut stop = self.stop.subscribe();
            tokio::select! {
                () = accept(listener, router) => {}
                _ = stop.wait_for(|stopped| *stopped) => {}
            }
            Ok(())
        });
        runtime.shutdown_background();
        served
    }
}

async fn accept(listener: TcpListener, router: Router) {
    let (served, refused) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(REFUSED)));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Too many open files: wait until some are closed.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if let Ok(permit) = served.clone().try_acquire_owned() {
            let router = router.clone();
            tokio::spawn(async move {
                connection(stream, router).await;
                drop(permit);
            });
        } else if let Ok(permit) = refused.clone().try_acquire_owned() {
            tokio::spawn(async move {
                let _ = tokio::time::timeout(Duration::from_secs(1), refuse(stream)).await;
                drop(permit);
            });
        }
    }
}

async fn refuse(mut stream: TcpStream) {
    let answer =
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 21\r\n\r\ntoo many connections\n";
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    // Closing while something is unread would take the answer back.
    let mut rest = [0; 1024];
    while tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await.is_ok_and(|n| n > 0) {}
}

async fn connection(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    // Who does not take an answer is let go; who is slow in asking, too.
    stream.set_write_timeout(Some(PATIENCE));
    let stream = pin!(stream);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(HEADERS);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}
