//! A client that is built anew when the files it was built from change.
//!
//! In: the files of a client certificate, and how to build a client. Out: a client that looks at the files once a
//! minute, when it is used. client-go does so, too: certificates of static pods are renewed while they run. What is
//! under way, a watch for one, stays on the old client's connections, which the server does not end for that.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::Request;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How often the files are looked at.
///
/// client-go: transport/cert_rotation.go looks every five minutes; a minute is what its tokens get.
const PERIOD: Duration = Duration::from_mins(1);

/// What tells one state of a file from another: a replaced symbolic link shows the new file's.
type Stamp = Option<(SystemTime, u64)>;

type Build = dyn Fn() -> Result<Client, kube::Error> + Send + Sync;

struct Reloading {
    files: Vec<PathBuf>,
    build: Box<Build>,
    state: Mutex<State>,
}

struct State {
    client: Client,
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// A client that follows these files. It is used within a runtime.
///
/// # Errors
/// Of the first client; later ones are logged, and the last that worked stays.
pub(super) fn reloading(
    files: Vec<PathBuf>,
    default_namespace: String,
    build: impl Fn() -> Result<Client, kube::Error> + Send + Sync + 'static,
) -> Result<Client, kube::Error> {
    // Before it is built: what changes meanwhile is seen the next time.
    let stamps = stamps(&files);
    let state = Mutex::new(State { client: build()?, stamps, looked: Instant::now() });
    let reloading = Arc::new(Reloading { files, build: Box::new(build), state });
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = reloading.client(Instant::now());
        async move { client.send(request).await }
    });
    Ok(Client::new(service, default_namespace))
}

impl Reloading {
    fn client(&self, now: Instant) -> Client {
        let mut state = self.state.lock();
        if now < state.looked + PERIOD {
            return state.client.clone();
        }
        state.looked = now;
        let stamps = stamps(&self.files);
        if stamps != state.stamps {
            match (self.build)() {
                Ok(client) => {
                    tracing::info!(files = ?self.files, "the client certificate was renewed");
                    (state.client, state.stamps) = (client, stamps);
                }
                Err(error) => {
                    tracing::warn!(files = ?self.files, %error, "the renewed client certificate cannot be used");
                }
            }
        }
        state.client.clone()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn m14_a_renewed_client_certificate_is_taken() {
        let file = std::env::temp_dir().join(format!("mooring-certificate-{}", std::process::id()));
        std::fs::write(&file, "old").unwrap();
        let broken = Arc::new(AtomicUsize::new(0));
        let build = {
            let (count, broken) = (AtomicUsize::new(0), Arc::clone(&broken));
            move || {
                if broken.load(Ordering::Relaxed) == 1 {
                    return Err(kube::Error::TlsRequired);
                }
                let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                let service = tower::service_fn(move |_: Request<Body>| async move {
                    Ok::<_, Infallible>(http::Response::new(Body::from(number.to_string().into_bytes())))
                });
                Ok(Client::new(service, "default"))
            }
        };
        let client = reloading(vec![file.clone()], "default".to_owned(), build).unwrap();
        let used = async || {
            tokio::time::advance(PERIOD).await;
            client.request_text(Request::new(Vec::new())).await.unwrap()
        };
        assert_eq!(used().await, "1");
        std::fs::write(&file, "renewed").unwrap();
        assert_eq!(used().await, "2");
        assert_eq!(used().await, "2");
        // Half written, then whole.
        broken.store(1, Ordering::Relaxed);
        std::fs::write(&file, "hal").unwrap();
        assert_eq!(used().await, "2");
        broken.store(0, Ordering::Relaxed);
        assert_eq!(used().await, "3");
        std::fs::remove_file(&file).unwrap();
    }
}
