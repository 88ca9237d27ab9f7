//! A report as pprof reads it: google/pprof's `profile.proto`, of which this has what a CPU profile needs.

use std::{collections::HashMap, io, io::Write as _, time::UNIX_EPOCH};

use flate2::{Compression, write::GzEncoder};
use pprof::{Report, Symbol};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) r#type: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// The innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    /// The innermost of inlined ones first.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}

/// Tables in which everything stands once.
struct Tables {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Vec<Line>, u64>,
}

impl Tables {
    fn new() -> Self {
        let mut tables = Self {
            profile: Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
        };
        // The first string has to be the empty one.
        tables.string("");
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn function(&mut self, symbol: &Symbol) -> u64 {
        let name = self.string(&symbol.name());
        let filename = self.string(&symbol.filename());
        let next = self.functions.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            let system_name = self.string(&symbol.sys_name());
            self.profile.function.push(Function { id, name, system_name, filename });
        }
        id
    }

    fn location(&mut self, symbols: &[Symbol]) -> u64 {
        let lines: Vec<Line> = symbols
            .iter()
            .map(|symbol| Line { function_id: self.function(symbol), line: i64::from(symbol.lineno()) })
            .collect();
        let next = self.locations.len() as u64 + 1;
        let id = *self.locations.entry(lines.clone()).or_insert(next);
        if id == next {
            self.profile.location.push(Location { id, line: lines });
        }
        id
    }
}

/// The innermost frames are the sampler's own.
fn is_of_the_sampler(symbol: &Symbol) -> bool {
    let name = symbol.name();
    ["backtrace::", "<pprof::", "pprof::", "perf_signal_handler"].iter().any(|own| name.starts_with(own))
}

/// The report of a sampler of this frequency.
pub(super) fn profile(report: &Report, frequency: i32) -> Profile {
    let mut tables = Tables::new();
    let period = 1_000_000_000 / i64::from(frequency.max(1));
    let [samples, count, cpu, nanoseconds, thread] =
        ["samples", "count", "cpu", "nanoseconds", "thread"].map(|text| tables.string(text));
    for (frames, times) in &report.data {
        let stack = frames.frames.iter().skip_while(|symbols| symbols.iter().any(is_of_the_sampler));
        let location_id = stack.map(|symbols| tables.location(symbols)).collect();
        let times = i64::try_from(*times).unwrap_or(i64::MAX);
        let label = Label { key: thread, str: tables.string(&frames.thread_name_or_id()) };
        let value = vec![times, times.saturating_mul(period)];
        tables.profile.sample.push(Sample { location_id, value, label: vec![label] });
    }
    let nanos = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
    let began = report.timing.start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let of_cpu = ValueType { r#type: cpu, unit: nanoseconds };
    Profile {
        sample_type: vec![ValueType { r#type: samples, unit: count }, of_cpu],
        time_nanos: nanos(began.as_nanos()),
        duration_nanos: nanos(report.timing.duration.as_nanos()),
        period_type: Some(of_cpu),
        period,
        ..tables.profile
    }
}

/// As pprof expects it in a file.
pub(super) fn gzip(profile: &Profile) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&profile.encode_to_vec())?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::Duration,
    };

    use flate2::read::GzDecoder;

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
        let taking = tokio::spawn(crate::profile::take(length));
        tokio::task::yield_now().await;
        let busy = crate::profile::take(length).await.unwrap_err();
        assert!(matches!(busy, crate::profile::ProfileError::Busy(_)), "{busy}");
        let compressed = taking.await.unwrap().unwrap();
        is_over.store(true, Ordering::Relaxed);
        working.join().unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).unwrap();
        let profile = Profile::decode(&bytes[..]).unwrap();
        let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        assert_eq!((text(0), text(profile.sample_type[1].r#type)), ("", "cpu"));
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
}
