//! Runs the demo from its start to its end.
//!
//! In: the flags. Out: what is shown, and an end: a key, a signal, the time that was asked for, or a
//! part that died. However it ends, the terminal is given back first, then the daemon is taken down
//! in order.

use std::{
    fmt::Write,
    io::{self, IsTerminal},
    iter::Peekable,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, anyhow};
use apiserver::{connect::ApiServer, lease, restore::RestoreGrace};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use mooring::{
    app::{self, Daemon},
    cli::{self, Cli, Command},
    config::Config,
    explain::{page::serve::PagePlace, read::Reader},
    query::page_source,
    supervise::Threads,
    telemetry,
};
use serde_json::json;
use testbed::{
    Options, Server,
    troubles::{
        director,
        script::{Act, Script},
        stage::Stage,
    },
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    arguments::{DemoArgs, DemoOutput},
    lines::Verb,
    observer::Observer,
    output::{self, Output, Request},
    place::Place,
    scraped,
    words::{self, GONE_NODE_AFTER},
};

/// How often what is shown is renewed: often enough to follow, seldom enough to be read.
const TICK: Duration = Duration::from_millis(250);
/// How many events the API server keeps, and how often that is seen to.
const KEPT_EVENTS: usize = 500;
const EXPIRY_PERIOD: Duration = Duration::from_secs(20);
/// Changes per kind that watches can go back, and that many more for each volume: they are all on
/// this machine and keep up but for the moment when everything is made at once.
const LOG_CAPACITY: usize = 500;
const LOG_CAPACITY_PER_VOLUME: usize = 5;

/// The flags cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(String);

/// Runs the demo.
///
/// # Errors
/// [`Mistake`] for flags that cannot be; anything else is the failure of a part.
pub async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let is_view = match args.output {
        Some(DemoOutput::View) if !io::stdout().is_terminal() => {
            return Err(Mistake("--output=view: stdout is no terminal".to_owned()).into());
        }
        Some(output) => output == DemoOutput::View,
        None => io::stdout().is_terminal() && args.metrics.is_none(),
    };
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .await
        .map_err(|error| Mistake(format!("--port {}: {error}", args.port)))?;
    if let Some(port) = args.metrics {
        // The daemon takes it later; what is wrong with it is said now.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        drop(free.map_err(|error| Mistake(format!("--metrics={port}: {error}")))?);
    }
    let place = Place::make().context("cannot make a temporary folder")?;
    let shown = show(args, is_view, listener, &place, &mut signals).await;
    match shown {
        Ok(summary) => {
            place.remove();
            // Its reader may be gone by now.
            let _ = output::print(&summary);
            Ok(())
        }
        Err(error) => Err(error.context(format!("the daemon's log is {}", place.log().display()))),
    }
}

/// Everything from the first part that starts to the last one that stops. Returns what is to be said
/// of it.
async fn show(
    args: &DemoArgs,
    is_view: bool,
    listener: TcpListener,
    place: &Place,
    signals: &mut Signals,
) -> anyhow::Result<String> {
    let mut demo = Demo::start(args, listener, place).await?;
    let mut output = if is_view { Output::view()? } else { Output::Lines };
    let opening = output.open(&words::opening(args, demo.seed, place, &demo.page));
    let played = match opening {
        Ok(()) => demo.play(args.duration, &mut output, signals).await,
        Err(error) => Err(error.into()),
    };
    // The terminal first: what is said from here on is for its ordinary screen.
    drop(output);
    match played {
        Ok(()) => demo.stop(signals).await,
        // Lines that are not read any more are an end like another.
        Err(error) if is_broken_pipe(&error) => demo.stop(signals).await,
        Err(error) => Err(error),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The signals that end the demo.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// All parts, running.
struct Demo {
    seed: u64,
    /// Address of the page.
    page: String,
    client: Client,
    script: Peekable<Script>,
    stage: Stage,
    daemon: Daemon,
    observer: Observer,
    serving: CancellationToken,
}

impl Demo {
    async fn start(args: &DemoArgs, listener: TcpListener, place: &Place) -> anyhow::Result<Self> {
        let seed = args.seed.map_or_else(|| getrandom::u32().map(u64::from), Ok);
        let seed = seed.map_err(|error| anyhow!("no random numbers: {error}"))?;
        let address: SocketAddr = listener.local_addr()?;
        place.write_kubeconfig(address).context("cannot write the kubeconfig")?;
        let config = daemon_config(args, place)?;
        telemetry::init_to(&config.log, place.open_log().context("cannot write the log")?)?;

        let log_capacity = LOG_CAPACITY + LOG_CAPACITY_PER_VOLUME * args.volumes;
        let server = Server::new(Options { log_capacity, ..Options::default() });
        if let Some(port) = args.metrics {
            let token = scraped::token()?;
            server.reviews().know(&token, "prometheus", &["system:authenticated"], &scraped::PATHS);
            scraped::write(place.folder(), port, &token).context("cannot write what Prometheus reads")?;
        }
        let serving = CancellationToken::new();
        tokio::spawn(testbed::serve(listener, server.clone(), serving.clone()));
        let client = server.client();
        let script = Script::new(seed, args.nodes, args.volumes, args.rate);
        let api = ApiServer::find(Some(&place.kubeconfig())).await?;
        let reader =
            Reader::new(&api, None).map_err(anyhow::Error::msg).context("cannot read for the page")?;
        let source = page_source(reader, config.attach_detach, api.default_namespace().to_owned(), None);
        let page = PagePlace::take(0).await.context("cannot serve the page")?;
        let address = page.url();
        tokio::spawn(page.serve(source, serving.clone()));
        add_lease(args, &client, &config, &api).await.context("cannot make the lease")?;
        let daemon = Daemon::start(config, &api, &RestoreGrace::default(), Threads::Shared).await?;
        let explanations = daemon.gate().router().clone();
        let observer = Observer::new(&client, explanations, seed, &place.kubeconfig(), &address);
        let stage = Stage::set(&client, &script).await.context("cannot set up the cluster")?;
        Ok(Self { seed, page: address, client, script: script.peekable(), stage, daemon, observer, serving })
    }

    /// Plays until the user wants it to end.
    async fn play(
        &mut self,
        duration: Option<Duration>,
        output: &mut Output,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let Self { client, script, stage, daemon, observer, .. } = self;
        let begin = observer.begin();
        let end = duration.map(|duration| begin + duration);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut expiry = interval(EXPIRY_PERIOD);
        loop {
            let next = script.peek().map_or(EXPIRY_PERIOD, |(at, _)| *at);
            tokio::select! {
                () = observer.look() => {}
                () = sleep_until(begin + next) => {
                    if let Some((_, act)) = script.next() {
                        perform(client, stage, act, observer).await;
                    }
                }
                _ = tick.tick() => output.show(observer)?,
                _ = expiry.tick() => {
                    if let Err(error) = director::expire_events(client, KEPT_EVENTS).await {
                        tracing::warn!(%error, "cannot delete old events");
                    }
                }
                request = output.request() => match request {
                    Request::Redraw => output.show(observer)?,
                    Request::End => return Ok(()),
                },
                () = signals.any() => return Ok(()),
                () = sleep_until(end.unwrap_or(begin)), if end.is_some() => {
                    output.show(observer)?;
                    return Ok(());
                }
                death = daemon.death() => return Err(death.into()),
            }
        }
    }

    /// Takes the daemon down in order, then all else. A signal meanwhile ends the process at once.
    async fn stop(mut self, signals: &mut Signals) -> anyhow::Result<String> {
        let summary = words::summary(&self.observer.snapshot());
        tokio::select! {
            stopped = self.daemon.stop() => stopped?,
            () = signals.any() => return Err(anyhow!("a second signal, before the daemon had stopped")),
        }
        self.serving.cancel();
        Ok(summary)
    }
}

/// No process has led this cluster before: its Lease says so, and the daemon does not wait for one that may. Where a
/// Prometheus is to be started, it is to see the first binds, too: they wait as at any first installation.
async fn add_lease(args: &DemoArgs, client: &Client, config: &Config, api: &ApiServer) -> anyhow::Result<()> {
    if args.metrics.is_some() {
        return Ok(());
    }
    let lease = json!({ "metadata": { "name": config.own_name }, "spec": lease::given_up() });
    let leases: Api<Lease> = Api::namespaced(client.clone(), &app::own_namespace(config, api));
    leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?;
    Ok(())
}

async fn perform(client: &Client, stage: &Stage, act: Act, observer: &mut Observer) {
    match director::act(client, stage, act.clone()).await {
        Ok(None) => {}
        Ok(Some(mut trouble)) => {
            if matches!(act, Act::Remove(_)) {
                let _ = write!(trouble.text, ", volumes by force after {GONE_NODE_AFTER} s");
            }
            observer.tell(Some((Verb::Node, trouble.node, trouble.text)));
        }
        Err(error) => tracing::warn!(?act, %error, "the script cannot be followed"),
    }
}

/// The daemon is configured as by an operator: with flags.
fn daemon_config(args: &DemoArgs, place: &Place) -> anyhow::Result<Config> {
    match cli::parse(words::daemon_command(args, place)) {
        Ok(Cli { command: Command::Run(args) }) => Ok(Config::try_from(*args)?),
        other => Err(anyhow!("the daemon's own flags are wrong: {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{self, Cli, Command};

    /// The Lease's holder, if there is one.
    async fn lease_of(words: &[&str]) -> Option<String> {
        let words = ["mooring", "demo"].iter().chain(words).map(Into::into);
        let Ok(Cli { command: Command::Demo(args) }) = arguments::parse(words) else { panic!("no demo") };
        let place = Place::make().unwrap();
        place.write_kubeconfig((Ipv4Addr::LOCALHOST, 1).into()).unwrap();
        let config = daemon_config(&args, &place).unwrap();
        let api = ApiServer::find(Some(&place.kubeconfig())).await.unwrap();
        let client = Server::new(Options::default()).client();
        add_lease(&args, &client, &config, &api).await.unwrap();
        place.remove();
        let leases: Api<Lease> = Api::namespaced(client, "kube-system");
        let lease = leases.get_opt("mooring").await.unwrap()?;
        Some(lease.spec.unwrap().holder_identity.unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn l14_the_demo_s_daemon_leads_at_once_unless_a_prometheus_is_to_see_the_first_binds() {
        assert_eq!(lease_of(&[]).await.as_deref(), Some(""));
        assert_eq!(lease_of(&["--metrics"]).await, None);
    }
}
