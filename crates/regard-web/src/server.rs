//! Connection limits and timeouts. Slow readers and senders are disconnected.

use crate::auth::{Auth, IO_TIMEOUT};
use crate::http;
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

/// Connections served at a time.
const CONNECTIONS: usize = 16;
/// Largest headers of a request, in bytes.
const HEADERS: usize = 16 << 10;
/// Connections above the limit that get a 503 at a time; others are closed.
const REFUSED: usize = 64;
/// Threads for connections, and for computing.
const WORKERS: usize = 2;
const COMPUTING: usize = 8;

/// A server that listens and does not respond yet.
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    auth: Arc<Auth>,
    models: Vec<Model>,
    stop: watch::Sender<bool>,
}

/// Stops a server, from any thread.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Stops the server; responses in progress are dropped.
    pub fn stop(&self) {
        let _ = self.0.send(true);
    }
}

impl Server {
    /// Listens on 127.0.0.1; port 0 takes any free port.
    ///
    /// # Errors
    /// When the port is in use.
    pub fn bind(models: Vec<Model>, port: u16) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        listener.set_nonblocking(true)?;
        let auth = Arc::new(Auth::new(listener.local_addr()?.port())?);
        Ok(Self { listener, auth, models, stop: watch::Sender::new(false) })
    }

    /// The address without the token.
    ///
    /// # Errors
    /// When the system does not report the port.
    pub fn origin(&self) -> std::io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// The address to open, with the token after `#`: browsers do not send that part.
    ///
    /// # Errors
    /// When the system does not report the port.
    pub fn address(&self) -> std::io::Result<String> {
        Ok(format!("{}/#token={}", self.origin()?, self.auth.token()))
    }

    /// A handle that stops it.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn serve(self) -> std::io::Result<()> {
        can_start(WORKERS + 1)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(COMPUTING)
            // The first thread for computing stays: where no second one can be started, requests wait for it.
            .thread_keep_alive(Duration::from_secs(365 * 24 * 3600))
            .enable_all()
            .build()?;
        let served = runtime.block_on(async {
            tokio::task::spawn_blocking(|| ()).await?;
            let listener = TcpListener::from_std(self.listener)?;
            let router = http::router(self.models, self.auth);
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

/// Starts and ends this number of threads: the runtime panics where the system refuses one.
fn can_start(threads: usize) -> std::io::Result<()> {
    let (mut started, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..threads {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        senders.push(sender);
        started.push(std::thread::Builder::new().spawn(move || receiver.recv().is_ok())?);
    }
    drop(senders);
    started.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
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
    let response =
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 21\r\n\r\ntoo many connections\n";
    let _ = stream.write_all(response.as_bytes()).await;
    let _ = stream.shutdown().await;
    // Closing a socket with unread data resets the connection, and the response is lost.
    let mut rest = [0; 1024];
    while tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await.is_ok_and(|n| n > 0) {}
}

async fn connection(stream: TcpStream, router: Router) {
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(IO_TIMEOUT));
    let stream = pin!(stream);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IO_TIMEOUT).max_buf_size(HEADERS);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await;
}
