//! A collector of traces that speaks OTLP over gRPC, and keeps what it is sent.

use std::sync::{Arc, Mutex};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::task::AbortOnDropHandle;

/// What it was sent.
#[derive(Clone, Debug, Default)]
struct Taken(Arc<Mutex<Vec<Span>>>, watch::Sender<usize>);

#[tonic::async_trait]
impl TraceService for Taken {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.0.lock().unwrap().extend(spans);
        self.1.send_modify(|count| *count += 1);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The collector; gone when dropped.
#[derive(Debug)]
pub struct Collector {
    taken: Taken,
    address: String,
    _serving: AbortOnDropHandle<()>,
}

impl Collector {
    /// Listens on a port of its own.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address").to_string();
        let taken = Taken::default();
        let service = TraceServiceServer::new(taken.clone());
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    // A daemon that ends cuts it off.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { taken, address, _serving: AbortOnDropHandle::new(serving) }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits until a span was sent that the function takes, and returns all of its trace.
    pub async fn trace_with(&self, is_it: impl Fn(&Span) -> bool) -> Vec<Span> {
        let mut count = self.taken.1.subscribe();
        loop {
            count.borrow_and_update();
            {
                let spans = self.taken.0.lock().unwrap();
                if let Some(found) = spans.iter().find(|span| is_it(span)) {
                    return spans.iter().filter(|span| span.trace_id == found.trace_id).cloned().collect();
                }
            }
            count.changed().await.expect("the collector lives");
        }
    }
}
