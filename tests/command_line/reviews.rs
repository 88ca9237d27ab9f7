//! Where reviews of credentials are asked for, and whose certificates count.

use super::*;

#[test]
fn a_mistake_in_a_kubeconfig_of_reviews_names_its_flag_unless_nothing_is_served() {
    let folder = folder("reviews-nowhere");
    let run = |port: u16, flag: &str| {
        let mut command = mooring();
        command.args(["run", "--bind-address=127.0.0.1", "--kubeconfig"]).arg(unreachable_api(&folder));
        command.arg(format!("--secure-port={port}")).arg(format!("{flag}=/nonexistent/kubeconfig"));
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    for flag in ["--authentication-kubeconfig", "--authorization-kubeconfig"] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let output = run(port, flag).wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let line = stderr.lines().last().unwrap();
        assert!(line.starts_with(&format!("mooring: {flag} /nonexistent/kubeconfig: ")), "{stderr}");
        let mut daemon = run(0, flag);
        let mut log = BufReader::new(daemon.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("starting") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
        }
        std::thread::spawn(move || log.read_to_string(&mut String::new()));
        assert!(Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status().unwrap().success());
        assert_eq!(daemon.wait().unwrap().code(), Some(0));
    }
}

/// An API server that says yes to every review, and publishes authorities of client certificates.
struct Reviewer {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Reviewer {
    fn start(authorities: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let begin = head.len();
                    stream.read_line(&mut head).unwrap();
                    let line = head[begin..].to_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                let answer = if path.ends_with("/tokenreviews") {
                    json!({ "status": { "authenticated": true, "user": { "username": "reader" } } })
                } else if path.ends_with("/subjectaccessreviews") {
                    json!({ "status": { "allowed": true } })
                } else {
                    json!({ "data": { "client-ca-file": fs::read_to_string(&authorities).unwrap() } })
                };
                seen.lock().unwrap().push(path);
                let answer = answer.to_string();
                let length = answer.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                stream.get_mut().write_all((head + &answer).as_bytes()).unwrap();
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[test]
fn reviews_are_asked_for_where_their_flags_say_and_authorities_are_looked_up_unless_told_not_to() {
    const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    const AUTHORITIES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    for (name, more) in [("reviews", &[][..]), ("reviews-skip", &["--authentication-skip-lookup"][..])] {
        let folder = folder(name);
        let [authentication, authorization] = [(); 2].map(|()| Reviewer::start(folder.join("ca.crt")));
        let flag = |name: &str, reviewer: &Reviewer| {
            format!("--{name}={}", kubeconfig(folder.join(name), &reviewer.url).display())
        };
        let flags = [
            flag("authentication-kubeconfig", &authentication),
            flag("authorization-kubeconfig", &authorization),
        ];
        let flags = flags.iter().map(String::as_str).chain(more.iter().copied());
        let mut daemon = Daemon::start_in(folder.clone(), flags);
        let mut log = daemon.unread_log.take().unwrap();
        std::thread::spawn(move || log.read_to_string(&mut String::new()));

        let answer = daemon.ask_with(false, "/metrics", "Authorization: Bearer a\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for expected in [
            "\napiserver_delegated_authn_request_total{code=\"200\"} 1\n",
            "\napiserver_delegated_authz_request_total{code=\"200\"} 1\n",
            "\napiserver_delegated_authn_request_duration_seconds_bucket{code=\"200\",le=\"0.25\"} ",
            "\napiserver_delegated_authz_request_duration_seconds_count{code=\"200\"} 1\n",
        ] {
            assert!(answer.contains(expected), "{expected}: {answer}");
        }
        assert_eq!(
            (authentication.asked(), authorization.asked()),
            (vec![TOKENS.into()], vec![ACCESS.into()])
        );
        let answer = daemon.ask(true, "/metrics");
        if more.is_empty() {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(authentication.asked(), [TOKENS, AUTHORITIES]);
        } else {
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
            assert_eq!(authentication.asked(), [TOKENS]);
        }
        assert_eq!(daemon.terminate(), Some(0));
    }
}
