//! Arguments of a program, as the containers of a pod or of its template show them.
//!
//! In: the spec of a pod. Out: flags, of which the last one counts, as `--flag=value` or in two words. What an image or a file
//! of configuration says is not to be seen here.

use serde_json::Value;

/// Commands and arguments of all containers, word by word.
pub fn words(pod_spec: &Value) -> Vec<&str> {
    let containers = pod_spec.get("containers").and_then(Value::as_array).into_iter().flatten();
    containers.flat_map(words_of).collect()
}

/// Those of the pods of a Deployment; none without one.
pub fn of_deployment(deployment: Option<&Value>) -> Vec<&str> {
    deployment.and_then(|it| it.pointer("/spec/template/spec")).map(words).unwrap_or_default()
}

/// Those of one container.
pub fn words_of(container: &Value) -> Vec<&str> {
    let lists = [container.get("command"), container.get("args")].into_iter().flatten();
    lists.filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect()
}

/// What follows the name in a word that is this flag: `=` and a value, or nothing. In a name, `_` is as good as `-`.
fn rest_of<'a>(word: &'a str, flag: &str) -> Option<&'a str> {
    let (name, rest) = word.split_at(word.find('=').unwrap_or(word.len()));
    (name.replace('_', "-") == flag).then_some(rest)
}

/// All values of a flag.
pub fn values<'a>(words: &[&'a str], flag: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        if let Some(rest) = rest_of(word, flag) {
            found.extend(rest.strip_prefix('=').or_else(|| words.next()));
        }
    }
    found
}

/// The value of a flag that has one.
pub fn value<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    values(words, flag).last().copied()
}

/// The list that all values of `--controllers` make together.
pub fn controllers(words: &[&str]) -> String {
    let lists = values(words, "--controllers");
    if lists.is_empty() { "*".to_owned() } else { lists.join(",") }
}

/// Go's `strconv.ParseBool`, which KCM's flags are read with.
pub(crate) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("not a boolean: use true or false".to_owned()),
    }
}

/// Whether a flag without a value, or with a true one, is given; `unset` if it is not given at all.
pub fn is_on(words: &[&str], flag: &str, unset: bool) -> bool {
    let last = words.iter().rev().find_map(|word| rest_of(word, flag));
    // What cannot be read ends the program.
    let is_true = |rest: &str| rest.strip_prefix('=').is_none_or(|value| parse_bool(value).unwrap_or(false));
    last.map_or(unset, is_true)
}

/// Namespace and name of the daemon's lease, by its arguments.
pub fn daemon_lease<'a>(words: &[&'a str]) -> [&'a str; 2] {
    let namespace = value(words, "--leader-elect-resource-namespace").unwrap_or("mooring-system");
    [namespace, value(words, "--leader-elect-resource-name").unwrap_or("mooring")]
}

/// Whether pods of an earlier template of a Deployment may be left.
pub fn is_rolling(deployment: &Value) -> bool {
    let number = |at: &str| deployment.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    number("/status/observedGeneration") < number("/metadata/generation")
        || number("/status/updatedReplicas") < number("/status/replicas")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_a_flag_counts_and_lists_are_joined_in_one_word_or_two() {
        let spec = json!({ "containers": [
            { "command": ["mooring", "run", "--a=1", "--a=2", "--on"] },
            { "args": ["--b", "3", "--on=false", "--on_top=True", "--of_a=a_b", "--bare"] },
        ]});
        let words = words(&spec);
        let values = ["--a", "--b", "--of-a", "--bare", "--c"].map(|flag| value(&words, flag));
        assert_eq!(values, [Some("2"), Some("3"), Some("a_b"), None, None]);
        assert_eq!(controllers(&words), "*");
        assert_eq!(controllers(&["--controllers=*,a", "--controllers", "-b"]), "*,a,-b");
        let is_on = |flag: &str| [false, true].map(|unset| is_on(&words, flag, unset));
        let found = ["--on", "--on-top", "--bare", "--off"].map(is_on);
        assert_eq!(found, [[false, false], [true, true], [true, true], [false, true]]);
    }
}
