//! Operations that have ended, sent as spans over OTLP: gRPC, without TLS, as Kubernetes' components do.
//!
//! In: the queue. Out: batches, one request at a time, on a thread of their own. What a collector does not take within
//! a deadline is lost and counted; what comes meanwhile waits in the queue, which has an end.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, trace_service_client::TraceServiceClient},
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span, span::SpanKind},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::{Finished, Outcome, Traces, lengths};

/// Operations of one request. Each has up to five spans of some 200 bytes, which keeps it well below gRPC's 4 MiB.
const BATCH: usize = 512;

/// How long a batch is gathered.
const LINGER: Duration = Duration::from_secs(1);

/// How long a collector may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// For the batch under way and the last one each, when the process ends: it waits two seconds for both.
const LAST_DEADLINE: Duration = Duration::from_millis(900);

/// Between tries of one batch.
const PAUSE: Duration = Duration::from_secs(2);

/// Tries of one batch.
const TRIES: u32 = 3;

/// Bits of `flags` that say the trace is sampled.
const SAMPLED: u32 = 1;

/// Sends what ends.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Receiver<Finished>,
    client: TraceServiceClient<Channel>,
    resource: Resource,
    traces: Traces,
    /// Whether the last batch failed.
    fails: bool,
}

impl Exporter {
    /// Sends to this URI, as this instance. Connects when there is something to send. Has to be called within the
    /// runtime that it runs on.
    ///
    /// # Errors
    /// The URI cannot be used.
    pub fn new(
        endpoint: &str,
        instance: &str,
        queue: mpsc::Receiver<Finished>,
        traces: Traces,
    ) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(endpoint.to_owned())?.connect_timeout(DEADLINE).connect_lazy();
        let attributes = vec![
            attribute("service.name", "mooring"),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
            attribute("service.instance.id", instance),
        ];
        let resource = Resource { attributes, ..Resource::default() };
        Ok(Self { queue, client: TraceServiceClient::new(channel), resource, traces, fails: false })
    }

    /// Sends until it is told to stop, and then what is left, if that is taken at once.
    ///
    /// # Errors
    /// None: nothing that is wrong here is worth the end of the process.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Infallible> {
        loop {
            let mut batch = Vec::new();
            let sending = async {
                self.queue.recv_many(&mut batch, BATCH).await;
                sleep(LINGER).await;
            };
            let is_last = tokio::select! {
                () = stop.cancelled() => true,
                () = sending => false,
            };
            while batch.len() < BATCH
                && let Ok(finished) = self.queue.try_recv()
            {
                batch.push(finished);
            }
            if is_last {
                if !batch.is_empty() {
                    self.send(batch, 1, LAST_DEADLINE).await;
                }
                return Ok(());
            }
            let mut sending = std::pin::pin!(self.send(batch, TRIES, DEADLINE));
            tokio::select! {
                () = &mut sending => {}
                () = stop.cancelled() => {
                    // If it takes longer, it is lost.
                    let _ = timeout(LAST_DEADLINE, sending).await;
                }
            }
        }
    }

    async fn send(&mut self, batch: Vec<Finished>, tries: u32, deadline: Duration) {
        let count = batch.len();
        let request = self.request(&batch, (SystemTime::now(), Instant::now()));
        let mut problem = String::new();
        for number in 1..=tries {
            match timeout(deadline, self.client.export(request.clone())).await {
                Ok(Ok(answer)) => {
                    let rejected = answer.into_inner().partial_success.map_or(0, |part| part.rejected_spans);
                    self.sent(count, rejected);
                    return;
                }
                Ok(Err(status)) => problem = format!("{:?}: {}", status.code(), status.message()),
                Err(_) => problem = format!("no answer within {deadline:?}"),
            }
            if number < tries {
                sleep(PAUSE).await;
            }
        }
        self.traces.count(Outcome::Failed, count);
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(error = problem, "traces cannot be sent, and are lost");
        }
    }

    fn sent(&mut self, count: usize, rejected: i64) {
        self.traces.count(Outcome::Exported, count);
        if std::mem::replace(&mut self.fails, false) {
            tracing::info!("traces are sent again");
        }
        if rejected > 0 {
            tracing::warn!(rejected, "the collector did not take all spans");
        }
    }

    fn request(&self, batch: &[Finished], clock: (SystemTime, Instant)) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: "mooring".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let spans = batch.iter().flat_map(|finished| spans(finished, clock)).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
        let resource_spans =
            ResourceSpans { resource: Some(self.resource.clone()), scope_spans, schema_url: String::new() };
        ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// The operation, and a child for each phase.
fn spans(finished: &Finished, (wall, now): (SystemTime, Instant)) -> Vec<Span> {
    let nanos = |at: Instant| {
        let time = wall.checked_sub(now.saturating_duration_since(at)).unwrap_or(UNIX_EPOCH);
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let lengths = lengths(finished);
    let whole: Duration = lengths.iter().map(|(_, took)| *took).sum();
    let trace_id = finished.id.0.to_vec();
    let root_id = span_id();
    let end = nanos(finished.ended);
    let length = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let mut start = end.saturating_sub(length(whole));
    let mut attributes: Vec<_> =
        finished.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    attributes.push(attribute("mooring.outcome", <&str>::from(finished.end)));
    let root = Span {
        trace_id: trace_id.clone(),
        span_id: root_id.clone(),
        name: finished.name.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        flags: SAMPLED,
        ..Span::default()
    };
    let mut spans = vec![root];
    for (name, took) in lengths {
        let ends = start.saturating_add(length(took));
        spans.push(Span {
            trace_id: trace_id.clone(),
            span_id: span_id(),
            parent_span_id: root_id.clone(),
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: start,
            end_time_unix_nano: ends,
            flags: SAMPLED,
            ..Span::default()
        });
        start = ends;
    }
    spans
}

/// Of eight bytes, not all of them 0.
fn span_id() -> Vec<u8> {
    fastrand::u64(1..).to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hyper_util::{
        rt::{TokioExecutor, TokioIo},
        server::conn::auto,
        service::TowerToHyperService,
    };
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    };
    use tokio::{net::TcpListener, sync::watch};

    use super::*;
    use crate::{
        metrics::Metrics,
        traces::{End, Step},
    };

    /// A collector that takes what it is sent.
    #[derive(Clone, Default)]
    struct Collector {
        taken: Arc<Mutex<Vec<ResourceSpans>>>,
        count: watch::Sender<usize>,
    }

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: tonic::Request<ExportTraceServiceRequest>,
        ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
            self.taken.lock().unwrap().extend(request.into_inner().resource_spans);
            self.count.send_modify(|count| *count += 1);
            Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
        }
    }

    impl Collector {
        /// Serves, and says where.
        async fn serve(&self) -> String {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let service = TraceServiceServer::new(self.clone());
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let service = TowerToHyperService::new(service.clone());
                    tokio::spawn(async move {
                        let server = auto::Builder::new(TokioExecutor::new());
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
            format!("http://{address}")
        }
    }

    fn finish(traces: &Traces, end: End) {
        let start = Instant::now();
        let step = |name, millis| Step { name, began: start + Duration::from_millis(millis) };
        traces.end(Finished {
            id: traces.sample().unwrap(),
            name: "attach volume",
            steps: vec![step("queue", 0), step("api", 5)],
            ended: start + Duration::from_millis(12),
            end,
            attributes: vec![("k8s.node.name", "n1".to_owned())],
        });
    }

    #[tokio::test]
    async fn an_operation_arrives_as_a_span_with_a_child_for_each_phase() {
        let collector = Collector::default();
        let mut count = collector.count.subscribe();
        let endpoint = collector.serve().await;
        let metrics = Metrics::default();
        let (traces, queue) = Traces::new(1_000_000, &metrics).unwrap();
        let exporter = Exporter::new(&endpoint, "pod-1", queue, traces.clone()).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(exporter.run(stop.clone()));
        finish(&traces, End::Done);
        count.wait_for(|count| *count == 1).await.unwrap();
        let text = |attributes: &[KeyValue], name: &str| {
            let found = attributes.iter().find(|attribute| attribute.key == name).unwrap();
            let Some(any_value::Value::StringValue(text)) = found.value.clone().unwrap().value else {
                panic!()
            };
            text
        };
        {
            let taken = collector.taken.lock().unwrap();
            let [resource] = &taken[..] else { panic!("{taken:?}") };
            let about = &resource.resource.as_ref().unwrap().attributes;
            assert_eq!(text(about, "service.name"), "mooring");
            assert_eq!(text(about, "service.instance.id"), "pod-1");
            let spans = &resource.scope_spans[0].spans;
            let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
            assert_eq!(names, ["attach volume", "queue", "api"]);
            let length = |span: &Span| span.end_time_unix_nano - span.start_time_unix_nano;
            assert_eq!(spans.iter().map(length).collect::<Vec<_>>(), [12_000_000, 5_000_000, 7_000_000]);
            let [root, children @ ..] = &spans[..] else { panic!() };
            assert_eq!((root.trace_id.len(), root.parent_span_id.len()), (16, 0));
            for child in children {
                assert_eq!((&child.trace_id, &child.parent_span_id), (&root.trace_id, &root.span_id));
            }
            assert_eq!(children[0].end_time_unix_nano, children[1].start_time_unix_nano);
            assert_eq!(text(&root.attributes, "k8s.node.name"), "n1");
            assert_eq!(text(&root.attributes, "mooring.outcome"), "done");
        }
        // What is left is sent at the end.
        finish(&traces, End::Superseded);
        stop.cancel();
        running.await.unwrap().unwrap();
        assert_eq!(collector.taken.lock().unwrap().len(), 2);
        let shown = metrics.text().unwrap();
        assert!(shown.contains("mooring_traces_total{outcome=\"exported\"} 2\n"), "{shown}");
    }

    #[tokio::test]
    async fn a_collector_that_is_away_costs_traces_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let metrics = Metrics::default();
        let (traces, queue) = Traces::new(1_000_000, &metrics).unwrap();
        let exporter = Exporter::new(&endpoint, "pod-1", queue, traces.clone()).unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        for _ in 0..=super::super::QUEUE {
            finish(&traces, End::Done);
        }
        exporter.run(stop).await.unwrap();
        let shown = metrics.text().unwrap();
        assert!(shown.contains("mooring_traces_total{outcome=\"queue_full\"} 1\n"), "{shown}");
        assert!(shown.contains(&format!("mooring_traces_total{{outcome=\"failed\"}} {BATCH}\n")), "{shown}");
        assert!(shown.contains("mooring_traces_total{outcome=\"exported\"} 0\n"), "{shown}");
    }
}
