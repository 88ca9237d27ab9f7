//! The parts of the daemon on the test's own runtime, in paused time: what `app` starts, with a client in place of a
//! kubeconfig.

use std::sync::Arc;

use apiserver::connect::ApiServer;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use mooring::{
    app,
    cli::{self, Command},
    config::Config,
    supervise::Threads,
};
use serving::{Gate, TlsPeer};
use test_support::daemon;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Starts them.
pub fn start(arguments: &[String], client: Client) -> Box<dyn daemon::InProcess> {
    let words = ["mooring".to_owned()].into_iter().chain(arguments.iter().cloned());
    let parsed = cli::parse(words).unwrap_or_else(|_| panic!("{arguments:?}"));
    let Command::Run(arguments) = parsed.command else { panic!("it is run") };
    let config = Config::try_from(*arguments).expect("flags that go together");
    Box::new(InProcess::start(config, client))
}

/// The parts of a daemon on the test's runtime. When dropped its line is cut first, so that nothing it
/// may still do before its tasks are gone reaches the server.
#[derive(Debug)]
struct InProcess {
    pages: watch::Receiver<Option<Arc<Gate>>>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<i32>>,
    line: CancellationToken,
}

impl InProcess {
    fn start(config: Config, client: Client) -> Self {
        let (pages_sender, pages) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let line = CancellationToken::new();
        let api = ApiServer::in_process(cuttable(client, line.clone()));
        let task = tokio::spawn(async move {
            let started = app::Life::start(config, &api, Threads::Shared, pages_sender).await;
            let mut daemon = started.expect("start the daemon's parts");
            tokio::select! {
                failure = daemon.failure() => {
                    tracing::error!(error = format!("{failure:#}"), "the daemon died");
                    1
                }
                _ = stopped => match daemon.stop().await {
                    Ok(()) => 0,
                    Err(error) => {
                        tracing::error!(error = format!("{error:#}"), "the daemon did not stop in order");
                        1
                    }
                },
            }
        });
        Self { pages, stop: Some(stop), task: Some(task), line }
    }
}

impl daemon::InProcess for InProcess {
    fn page<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let gate = self.pages.clone().wait_for(Option::is_some).await.ok()?.clone()?;
            let (status, body) = gate.router().here(path);
            (status == StatusCode::OK).then_some(body)
        })
    }

    fn visit<'a>(&'a self, path: &'a str, token: Option<&'a str>) -> BoxFuture<'a, (StatusCode, String)> {
        Box::pin(async move {
            let gate = self.pages.clone().wait_for(Option::is_some).await.expect("a daemon").clone();
            let mut request = Request::get(path);
            if let Some(token) = token {
                request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let peer = TlsPeer::new([127, 0, 0, 1].into(), Arc::default());
            let request = request.body(axum::body::Body::empty()).unwrap();
            let (head, body) = gate.expect("waited for").answer(&peer, request).await.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            (head.status, String::from_utf8_lossy(&body).into_owned())
        })
    }

    fn is_over(&self) -> bool {
        self.task.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
    }

    fn stop(mut self: Box<Self>) -> BoxFuture<'static, Option<i32>> {
        Box::pin(async move {
            // If it has ended already, that is what the task says.
            let _ = self.stop.take()?.send(());
            self.task.take()?.await.ok()
        })
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.line.cancel();
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// A client whose requests fail once the line is cut, also those under way.
fn cuttable(client: Client, line: CancellationToken) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, line) = (client.clone(), line.clone());
        async move {
            let answer = line.run_until_cancelled(client.send(request)).await;
            answer.unwrap_or_else(|| Err(kube::Error::Service("the daemon is dead".into())))
        }
    });
    Client::new(service, "default")
}
