//! What the process spends its CPU on, sampled while an operator waits for it.
//!
//! In: for how long. Out: a profile in pprof's format, gzipped, with one stack for each sample: 99 of them in a
//! second of CPU time, none while the process rests. One at a time. The sampler is a signal (SIGPROF), whose handler
//! only walks the stack: without locks, as glibc from 2.35 on finds frames without any, and never out of the C library
//! itself (samples that hit it are left out). It keeps some 70 MiB once it has run, so it is refused where the
//! memory limit has no room for that.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use pprof::{Frames, ProfilerGuardBuilder, Report, Symbol, protos::Message as _};
use thiserror::Error;
use tokio::{
    sync::{Semaphore, TryAcquireError},
    task::{JoinError, spawn_blocking},
};

/// For how long, if nothing is said. Go: net/http/pprof, Profile.
const DEFAULT_SECONDS: u64 = 30;

/// No longer than this.
const MOST_SECONDS: u64 = 60;

/// Samples in a second of CPU time; not a divisor of anything that happens each so many milliseconds.
const FREQUENCY: i32 = 99;

/// Room that the sampler and the report of a busy minute take.
const ROOM: u64 = 160 << 20;

/// Where the kernel tells of the memory limit of the container (cgroup v2).
const LIMIT: &str = "/sys/fs/cgroup/memory.max";
/// And what is used of it.
const USED: &str = "/sys/fs/cgroup/memory.current";

/// Where the sampler may spill. A container's own file system is often read-only; this is memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// What must not be interrupted: what is not to be entered twice.
const NEVER_INTERRUPTED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// One at a time.
static TURN: Semaphore = Semaphore::const_new(1);

/// Why there is no profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The query cannot be understood.
    #[error("seconds: {0:?} is not a number from 1 to {MOST_SECONDS}")]
    Seconds(String),
    /// The C library, which is not to be interrupted, is a part of the program, and cannot be told from the rest.
    #[error("a static program takes no profile: the C library in it would be interrupted")]
    Static,
    /// Another is being taken.
    #[error("a profile is being taken already")]
    Busy(#[from] TryAcquireError),
    /// It would take the memory that the daemon needs.
    #[error("a profile takes {} MiB, and the memory limit has no room for that", ROOM >> 20)]
    NoRoom,
    /// The sampler cannot be started.
    #[error("the sampler: {0}")]
    Sampler(#[from] pprof::Error),
    /// It cannot be written down.
    #[error("the profile cannot be compressed: {0}")]
    Compression(#[from] io::Error),
    /// Its thread is gone.
    #[error("the profile could not be taken: {0}")]
    Thread(#[from] JoinError),
    /// The client is gone.
    #[error("nobody waits for it any more")]
    Abandoned,
}

/// For how long a query asks.
///
/// # Errors
/// It asks for what is not a number of seconds, or for too many.
pub fn asked(query: Option<&str>) -> Result<Duration, ProfileError> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let Some((_, text)) = pairs.find(|(name, _)| name == "seconds") else {
        return Ok(Duration::from_secs(DEFAULT_SECONDS));
    };
    let seconds = text.parse().ok().filter(|seconds| (1..=MOST_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| ProfileError::Seconds(text.into_owned()))
}

/// Takes a profile. Ends early when it is no longer waited for.
///
/// # Errors
/// See [`ProfileError`].
pub async fn take(length: Duration) -> Result<Vec<u8>, ProfileError> {
    if cfg!(target_env = "musl") {
        return Err(ProfileError::Static);
    }
    let turn = TURN.try_acquire()?;
    // Dropped with this future; that is noticed where the samples are taken.
    let (_waiting, is_waited_for) = channel::<()>();
    let taking = spawn_blocking(move || {
        let _turn = turn;
        let read = |path: &str| fs::read_to_string(path).ok();
        if !has_room(read(LIMIT).as_deref(), read(USED).as_deref()) {
            return Err(ProfileError::NoRoom);
        }
        let spill = place(&std::env::temp_dir());
        // Set once in a process, to where it would be again.
        let _ = tempfile::env::override_temp_dir(&spill);
        let sampler =
            ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NEVER_INTERRUPTED).build()?;
        match is_waited_for.recv_timeout(length) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Err(ProfileError::Abandoned),
        }
        let report = sampler.report().frames_post_processor(without_the_sampler).build()?;
        drop(sampler);
        encoded(&report)
    });
    taking.await?
}

/// The innermost frames are the sampler's own.
fn without_the_sampler(frames: &mut Frames) {
    let is_own = |symbol: &Symbol| {
        let name = symbol.name();
        let own = ["backtrace::", "<pprof::", "pprof::", "perf_signal_handler"];
        own.iter().any(|own| name.starts_with(own))
    };
    let own = frames.frames.iter().take_while(|symbols| symbols.iter().any(is_own)).count();
    frames.frames.drain(..own);
}

/// As pprof expects it in a file.
fn encoded(report: &Report) -> Result<Vec<u8>, ProfileError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&report.pprof()?.write_to_bytes().map_err(io::Error::from)?)?;
    Ok(encoder.finish()?)
}

/// Whether a limit leaves room; one that is not known does.
fn has_room(limit: Option<&str>, used: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok());
    match (number(limit), number(used)) {
        (Some(limit), Some(used)) => limit.saturating_sub(used) >= ROOM,
        _ => true,
    }
}

/// The usual folder for temporary files, or memory where that one cannot be written to.
fn place(usual: &Path) -> PathBuf {
    let is_writable = tempfile::tempfile_in(usual).is_ok();
    if is_writable { usual.to_owned() } else { PathBuf::from(SHARED_MEMORY) }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use flate2::read::GzDecoder;
    use pprof::protos::Profile;

    use super::*;

    /// Work that shows in a profile under its name.
    #[inline(never)]
    fn burns_cpu_for_the_profile(is_over: &AtomicBool) -> u64 {
        let mut sum = 0_u64;
        while !is_over.load(Ordering::Relaxed) {
            sum =
                (0..10_000_u64).fold(sum, |sum, number| std::hint::black_box(sum.wrapping_mul(31) ^ number));
        }
        sum
    }

    #[tokio::test]
    async fn the_function_that_takes_the_time_is_in_the_profile() {
        let length = Duration::from_secs(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&is_over);
        let working = std::thread::Builder::new().name("at-work".to_owned());
        let working = working.spawn(move || burns_cpu_for_the_profile(&end)).unwrap();
        let taking = tokio::spawn(take(length));
        tokio::task::yield_now().await;
        let busy = take(length).await.unwrap_err();
        assert!(matches!(busy, ProfileError::Busy(_)), "{busy}");
        let compressed = taking.await.unwrap().unwrap();
        is_over.store(true, Ordering::Relaxed);
        working.join().unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).unwrap();
        let profile = Profile::parse_from_bytes(&bytes).unwrap();
        let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!((text(0), text(profile.sample_type[1].ty)), ("", "cpu"));
        let burning = |location: &u64| {
            let location = &profile.location[usize::try_from(location - 1).unwrap()];
            location.line.iter().any(|line| {
                let function = &profile.function[usize::try_from(line.function_id - 1).unwrap()];
                text(function.name).contains("burns_cpu_for_the_profile")
            })
        };
        let samples = profile.sample.iter().filter(|sample| sample.location_id.iter().any(burning));
        let times: i64 = samples.clone().map(|sample| sample.value[0]).sum();
        assert!(times > 0, "{} samples", profile.sample.len());
        assert!(samples.clone().all(|sample| text(sample.label[0].str) == "at-work"));
        for sample in samples {
            let innermost = &profile.location[usize::try_from(sample.location_id[0] - 1).unwrap()];
            let function = &profile.function[usize::try_from(innermost.line[0].function_id - 1).unwrap()];
            assert!(!text(function.name).contains("backtrace"), "{}", text(function.name));
        }
        assert!(profile.duration_nanos >= 1_000_000_000);
    }

    #[test]
    fn a_query_says_for_how_long_and_never_for_longer_than_a_minute() {
        let seconds = |query| asked(query).map(|length| length.as_secs()).map_err(|error| error.to_string());
        assert_eq!(seconds(None), Ok(30));
        assert_eq!(seconds(Some("debug=1&seconds=5")), Ok(5));
        assert_eq!(seconds(Some("seconds=60")), Ok(60));
        for wrong in ["seconds=0", "seconds=61", "seconds=-1", "seconds=x", "seconds="] {
            assert!(seconds(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn where_memory_is_short_none_is_taken() {
        let mib = |count: u64| format!("{}\n", count << 20);
        assert!(has_room(Some("max\n"), Some(&mib(500))));
        assert!(has_room(None, None));
        assert!(has_room(Some(&mib(512)), Some(&mib(100))));
        assert!(!has_room(Some(&mib(128)), Some(&mib(40))));
        assert!(!has_room(Some(&mib(128)), Some(&mib(200))));
    }

    #[test]
    fn what_cannot_be_written_to_disk_is_kept_in_memory() {
        assert_eq!(place(&std::env::temp_dir()), std::env::temp_dir());
        assert_eq!(place(Path::new("/proc/nowhere")), Path::new(SHARED_MEMORY));
    }
}
