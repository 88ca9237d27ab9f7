//! One history: a seed decides every step of a simulated cluster and of the daemon in it.

mod actors;
mod daemon;
pub mod explore;
mod fingerprint;
mod server;

use std::time::Duration;

use daemon::Daemon;
use fastrand::Rng;
use server::Server;

/// Steps with faults before the trouble stops.
const STEPS: usize = 150;
/// Rounds of five seconds without faults in which everything must have come to rest.
const ROUNDS: usize = 400;

/// Plays the history of a seed. The error is the first broken promise.
pub fn play(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut server = Server::new();
    let mut daemon = Daemon::start(&server);
    daemon.reconcile()?;
    for _ in 0..STEPS {
        match rng.u32(0..100) {
            0..7 => server.user_acts(&mut rng),
            7..9 => server.machine_acts(&mut rng),
            9..22 => server.attacher_acts(&mut rng),
            22..36 => server.kubelet_acts(&mut rng),
            36..62 => daemon.watch_delivers(&server, &mut rng)?,
            62..78 => daemon.request_arrives(&mut server, &mut rng)?,
            78..90 => daemon.reply_arrives(&mut rng)?,
            90..92 => daemon.request_is_lost(&mut rng)?,
            92..94 => daemon.reply_is_lost(&mut rng)?,
            94..96 => pass(&mut server, &mut daemon, Duration::from_millis(rng.u64(1..900)))?,
            96..97 => pass(&mut server, &mut daemon, Duration::from_secs(6))?,
            97..98 => pass(&mut server, &mut daemon, Duration::from_secs(rng.u64(30..400)))?,
            98..99 => daemon.watch_begins_anew(&server, &mut rng)?,
            _ if rng.u32(0..2) == 0 => {
                daemon.dies(&mut server, || rng.bool())?;
                daemon = Daemon::start(&server);
                daemon.reconcile()?;
            }
            _ => {}
        }
    }
    settle(&mut server, &mut daemon, &mut rng)
}

fn pass(server: &mut Server, daemon: &mut Daemon, time: Duration) -> Result<(), String> {
    server.time_passes(time);
    daemon.time_passes(time)
}

fn settle(server: &mut Server, daemon: &mut Daemon, rng: &mut Rng) -> Result<(), String> {
    // H9, L9: what was on a machine that is gone for good is given up after six minutes.
    let enough = if rng.u32(0..4) == 0 {
        server.machine_goes(rng.usize(0..2));
        if rng.bool() {
            daemon.dies(server, || rng.bool())?;
            *daemon = Daemon::start(server);
            daemon.reconcile()?;
        }
        80
    } else {
        30
    };
    server.everything_is_well();
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        let before = server.revision();
        server.everyone_acts();
        daemon.watch_delivers_all(server)?;
        let sent = daemon.requests_and_replies(server, rng)?;
        quiet = if sent == 0 && server.revision() == before { quiet + 1 } else { 0 };
        if quiet > enough {
            return server
                .is_as_wanted()
                .map_err(|error| format!("{error}; the daemon waits for {}", daemon.waits_for()));
        }
        pass(server, daemon, Duration::from_secs(5))?;
    }
    Err(format!("not at rest after {ROUNDS} rounds: {server:#?}"))
}
