//! `mooring explain --serve`: the page of the one who asks, over what this one may read.
//!
//! In: a port and a connection. Out: the page's address on stdout, and answers until it is interrupted. Each view is read
//! anew from the API server. [`ServedPage`] is the same for a program that has a cluster of its own.

use std::io;

use apiserver::{
    kinds::ObjectRef,
    {connect::ApiServer, ids::NodeName},
};
use futures::FutureExt;
use tokio::signal::ctrl_c;
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    output::{QueryStop, UNREACHABLE, USAGE, print, program},
};
use crate::{
    attach_detach::AttachDetachOptions,
    cli::query::ExplainArgs,
    explain::{
        doctor::{Findings, doctor},
        drain::{DrainView, drain},
        explain,
        page::{
            serve::PagePlace,
            source::{PageAnswer, PageSource},
        },
        read::{Question, Reader},
        report::{Explanation, Verdict},
        snapshot::Snapshot,
    },
};

/// Serves until it is interrupted.
pub(super) async fn serve(args: &ExplainArgs, port: u16) -> Result<Verdict, QueryStop> {
    let Connection { reader, namespace, .. } = Connection::new(&args.view.connection).await?;
    let place = PagePlace::take(port).await;
    let place = place.map_err(|error| QueryStop(USAGE, format!("--serve={port}: {error}")))?;
    if !print(&format!("{}\n", place.url())) {
        return Err(QueryStop(UNREACHABLE, "stdout is closed: nobody can read the address".to_owned()));
    }
    let stop = CancellationToken::new();
    let of = args.view.connection.namespace.clone();
    let source = Reads { reader, options: AttachDetachOptions::default(), namespace, of };
    let serving = place.serve(source, stop.clone());
    let interrupted = async {
        // Without signals it is served until the process ends.
        if ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        stop.cancel();
    };
    tokio::join!(serving, interrupted);
    Ok(Verdict::Healthy)
}

/// A page over an API server.
pub struct ServedPage {
    place: PagePlace,
    source: Reads,
}

impl ServedPage {
    /// One on any free port of the loopback address, over a cluster whose controller has these flags.
    ///
    /// # Errors
    /// There is no port or no secret for it, or nothing to connect with.
    pub async fn over(api: &ApiServer, options: AttachDetachOptions) -> io::Result<Self> {
        let reader = Reader::new(api, None).map_err(io::Error::other)?;
        let namespace = api.default_namespace().to_owned();
        let source = Reads { reader, options, namespace, of: None };
        Ok(Self { place: PagePlace::take(0).await?, source })
    }

    /// What is told to the one who may read it.
    pub fn url(&self) -> String {
        self.place.url()
    }

    /// Answers until it is told to stop.
    pub async fn serve(self, stop: CancellationToken) {
        self.place.serve(self.source, stop).await;
    }
}

/// Reads with the user's own rights.
struct Reads {
    reader: Reader,
    options: AttachDetachOptions,
    /// What is read of who may not see all.
    namespace: String,
    /// The only namespace whose waits are wanted, if one was named.
    of: Option<String>,
}

impl Reads {
    async fn read(&self, question: Question) -> Result<Snapshot, String> {
        let mut snapshot = self.reader.read(&question).await.map_err(|error| error.to_string())?;
        snapshot.attach_detach = self.options;
        Ok(snapshot)
    }
}

impl PageSource for Reads {
    fn program(&self) -> &'static str {
        program()
    }

    fn waiting(&self) -> PageAnswer<'_, Findings> {
        async {
            let snapshot = self.read(Question::Cluster(self.namespace.clone())).await?;
            Ok(doctor(&snapshot, self.of.as_deref()))
        }
        .boxed()
    }

    fn explain<'a>(&'a self, subject: &'a ObjectRef) -> PageAnswer<'a, Explanation> {
        async move { Ok(explain(&self.read(Question::Object(subject.clone())).await?, subject)) }.boxed()
    }

    fn node<'a>(&'a self, name: &'a NodeName) -> PageAnswer<'a, DrainView> {
        async move { Ok(drain(&self.read(Question::Drain(name.clone())).await?, name, None)) }.boxed()
    }
}
