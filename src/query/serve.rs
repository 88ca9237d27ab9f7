//! `mooring explain --serve`: the page of the one who asks, over what this one may read.
//!
//! In: a port and a connection. Out: the page's address on stdout, and answers until it is interrupted. Each view is read
//! anew from the API server. [`ServedPage`] is the same for a program that has a cluster of its own.

use std::{io, sync::Arc};

use apiserver::connect::ApiServer;
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
        page::{serve::PagePlace, source::PageSource},
        read::Reader,
        report::Verdict,
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
    let source = source(reader, AttachDetachOptions::default(), namespace, of);
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
    source: PageSource,
}

impl ServedPage {
    /// One on any free port of the loopback address, over a cluster whose controller has these flags.
    ///
    /// # Errors
    /// There is no port or no secret for it, or nothing to connect with.
    pub async fn over(api: &ApiServer, options: AttachDetachOptions) -> io::Result<Self> {
        let reader = Reader::new(api, None).map_err(io::Error::other)?;
        let namespace = api.default_namespace().to_owned();
        let source = source(reader, options, namespace, None);
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

/// Reads with the user's own rights, for a controller that has these flags.
fn source(reader: Reader, options: AttachDetachOptions, namespace: String, of: Option<String>) -> PageSource {
    let reader = Arc::new(reader);
    let read = move |question| {
        let reader = Arc::clone(&reader);
        async move {
            let mut snapshot = reader.read(&question).await.map_err(|error| error.to_string())?;
            snapshot.attach_detach = options;
            Ok(snapshot)
        }
        .boxed()
    };
    PageSource { program: program(), namespace, of, read: Box::new(read) }
}
