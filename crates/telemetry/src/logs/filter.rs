//! What is logged: `-v` as kube-controller-manager counts, or a filter, and both while the process runs.
//!
//! In: a number or directives. Out: the directives that `tracing` reads. The client library quotes whole answers
//! of the API server in warnings, with the env of pods in them: it only gets a say when it is named.

use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Target of the client library's log lines.
const CLIENT_LIBRARY: &str = "kube_client";

/// The filter that a number of `-v` stands for. Numbers below and above the documented ones are like the nearest.
///
/// | `-v` | what is logged |
/// |---|---|
/// | 0–3 | each change of an object's state, and what goes wrong |
/// | 4 | also each write, refusal of a client, and closed connection |
/// | 5 | all that mooring has to say |
/// | 6–10 | also what the libraries for HTTP and TLS have to say of connections; of requests, no bodies |
pub fn of_verbosity(verbosity: i64) -> &'static str {
    match verbosity {
        ..=3 => "info",
        4 => "info,mooring=debug",
        5 => "info,mooring=trace",
        6.. => "debug,mooring=trace",
    }
}

/// The directives, checked, with the client library kept from quoting unless they name it.
///
/// # Errors
/// A word that is no level, or a directive that cannot be read. The filter's own parser takes any word for the name
/// of a target, so that a mistyped level would silence the log.
pub fn checked(filter: &str) -> Result<String, String> {
    for directive in filter.split(',') {
        let is_bare = !directive.contains(['=', '[']);
        if is_bare && directive.trim().parse::<LevelFilter>().is_err() {
            return Err(format!("{directive:?} is not a level (off, error, warn, info, debug, trace)"));
        }
    }
    EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
    let names_client = filter.split(',').any(|directive| directive.trim().starts_with(CLIENT_LIBRARY));
    Ok(if names_client { filter.to_owned() } else { format!("{filter},{CLIENT_LIBRARY}=error") })
}

/// Bytes of a filter that is set at run time.
const LONGEST: usize = 1_024;

/// What this process logs, changed while it runs.
#[derive(Debug)]
pub struct Switch {
    handle: reload::Handle<EnvFilter, Registry>,
    /// The directives in use.
    present: Mutex<String>,
}

/// That of this process' log.
static SWITCH: OnceLock<Switch> = OnceLock::new();

impl Switch {
    /// Makes the switch of this filter that of the process.
    pub(super) fn install(handle: reload::Handle<EnvFilter, Registry>, filter: &str) {
        // The receiver of this process' log is set once.
        let _ = SWITCH.set(Self { handle, present: Mutex::new(filter.to_owned()) });
    }

    /// That of the process, if the log is its own.
    ///
    /// # Errors
    /// Something else receives the log.
    pub fn of_process() -> Result<&'static Self, String> {
        SWITCH.get().ok_or_else(|| "the log of this process is not its own".to_owned())
    }

    /// The directives in use.
    pub fn filter(&self) -> String {
        self.present.lock().clone()
    }

    /// Uses other directives from now on. Returns the sentence to answer with.
    ///
    /// # Errors
    /// See [`checked`].
    pub fn set_filter(&self, filter: &str) -> Result<String, String> {
        let filter = filter.trim();
        if filter.is_empty() || filter.len() > LONGEST {
            return Err(format!("a filter has 1 to {LONGEST} bytes"));
        }
        let filter = checked(filter)?;
        self.put(&filter)?;
        Ok(format!("successfully set the filter to {filter}"))
    }

    /// Uses what a number of `-v` stands for from now on. Returns the sentence to answer with.
    ///
    /// KCM: component-base/logs/logs.go, GlogSetter.
    ///
    /// # Errors
    /// It is no number.
    pub fn set_verbosity(&self, text: &str) -> Result<String, String> {
        // Upstream takes no space around it; `curl -d @file` and `echo` leave a line's end.
        let text = text.trim_end_matches(['\n', '\r']);
        let number: u32 = text.parse().map_err(|_| format!("{text:?} is not a number from 0 on"))?;
        self.put(&checked(of_verbosity(i64::from(number)))?)?;
        Ok(format!("successfully set klog.logging.verbosity to {text}"))
    }

    fn put(&self, filter: &str) -> Result<(), String> {
        let parsed = EnvFilter::try_new(filter).map_err(|error| error.to_string())?;
        let mut present = self.present.lock();
        self.handle.reload(parsed).map_err(|error| error.to_string())?;
        filter.clone_into(&mut present);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn the_client_library_is_only_heard_when_it_is_named() {
        assert_eq!(checked("info").unwrap(), "info,kube_client=error");
        assert_eq!(checked("info,kube_client=warn").unwrap(), "info,kube_client=warn");
        for number in -1..12 {
            assert!(checked(of_verbosity(number)).unwrap().ends_with(",kube_client=error"), "{number}");
        }
        assert_eq!(
            checked("inof").unwrap_err(),
            "\"inof\" is not a level (off, error, warn, info, debug, trace)"
        );
        assert!(checked("mooring=loud").is_err());
    }

    #[test]
    fn level_and_filter_are_changed_while_the_process_runs() {
        let (filter, handle) = reload::Layer::new(EnvFilter::try_new("info").unwrap());
        let switch = Switch { handle, present: Mutex::new("info".to_owned()) };
        let subscriber = tracing_subscriber::registry().with(filter);
        tracing::subscriber::with_default(subscriber, || {
            let heard = || {
                let ours = tracing::enabled!(target: "mooring::x", tracing::Level::DEBUG);
                (ours, tracing::enabled!(target: "hyper", tracing::Level::DEBUG))
            };
            assert_eq!(heard(), (false, false));
            let said = "successfully set klog.logging.verbosity to 4";
            assert_eq!(switch.set_verbosity("4").as_deref(), Ok(said));
            assert_eq!(heard(), (true, false));
            assert_eq!(switch.set_verbosity("10\n").map(|_| heard()), Ok((true, true)));
            assert_eq!(switch.set_verbosity("0").map(|_| heard()), Ok((false, false)));
            let said = "successfully set the filter to warn,hyper=debug,kube_client=error";
            assert_eq!(switch.set_filter("warn,hyper=debug\n").as_deref(), Ok(said));
            assert_eq!(heard(), (false, true));
            assert_eq!(switch.filter(), "warn,hyper=debug,kube_client=error");
            for wrong in ["", "x", "-1", "4.5", " 4"] {
                assert!(switch.set_verbosity(wrong).is_err(), "{wrong:?}");
            }
            for wrong in ["", "loud", "mooring=loud", &"x".repeat(2_000)] {
                assert!(switch.set_filter(wrong).is_err(), "{wrong:?}");
            }
            assert_eq!(heard(), (false, true), "what cannot be used changes nothing");
        });
    }
}
