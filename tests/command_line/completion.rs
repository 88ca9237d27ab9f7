//! Completion and manual pages: what a shell is told.

use super::*;

#[test]
fn completion_scripts_and_manual_pages_are_printed_or_written() {
    let run = |arguments: &[&str]| mooring().args(arguments).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completion", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{shell}");
        for word in ["mooring", "explain", "doctor", "leader-elect-lease-duration"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let pages = [
        "",
        "-explain",
        "-doctor",
        "-node",
        "-whatif",
        "-repair",
        "-observe",
        "-preflight",
        "-switch",
        "-run",
        "-completion",
        "-man",
    ];
    let output = run(&["man"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let folder = folder("manual").join("share/man1");
    let _ = fs::remove_dir_all(&folder);
    let output = run(&["man", folder.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), output.stdout.len(), output.stderr.len()),
        (Some(0), 0, 0),
        "{output:?}"
    );
    for page in pages {
        let written = fs::read_to_string(folder.join(format!("mooring{page}.1"))).unwrap();
        assert!(written.contains(&format!(".TH mooring{page} 1")), "{page}");
        assert!(printed.contains(&written), "{page}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), pages.len());

    let no_folder = folder.join("mooring.1");
    let cases: [(&[&str], i32, &str); 3] = [
        (&["completion"], 2, "mooring: the following required arguments were not provided: <SHELL>"),
        (&["completion", "tcsh"], 2, "mooring: invalid value 'tcsh' for '<SHELL>'"),
        (&["man", no_folder.to_str().unwrap()], 1, "mooring: the manual cannot be written: "),
    ];
    for (arguments, code, expected) in cases {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

/// An API server that has two objects of every kind. Sends the head of each request.
fn listing_api() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sent, heads) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            let named = |name: &str| json!({ "metadata": { "name": name } });
            let list =
                json!({ "items": [named("data"), named("shop"), named("an\u{1b}[2Jodd one")] }).to_string();
            let length = list.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{list}"
            );
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            if sent.send(head).is_err() {
                return;
            }
        }
    });
    (address, heads)
}

/// What kubectl is told under a kubeconfig; never an error.
fn completed(folder: &Path, kubeconfig: &Path, words: &[&str]) -> String {
    let program = folder.join("kubectl_complete-mooring");
    let _ = fs::remove_file(&program);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mooring"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent").env("KUBECONFIG", kubeconfig);
    let output = command.args(words).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn kubectl_is_told_what_may_come_next() {
    let folder = folder("completion");
    let (address, heads) = listing_api();
    let config = kubeconfig(folder.join("listing"), &address);
    let told = |words: &[&str]| completed(&folder, &config, words);
    let commands = told(&[""]);
    let expected =
        ["run", "explain", "doctor", "node", "whatif", "repair", "observe", "completion", "man", ":4"];
    for command in expected {
        assert!(commands.lines().any(|line| line == command), "{command}: {commands}");
    }
    // What ends with a slash goes on without a space (ShellCompDirectiveNoSpace).
    assert_eq!(told(&["explain", "p"]), "pod/\npvc/\npv/\n:6\n");
    assert_eq!(told(&["explain", "pvc/a", "-o", "y"]), "yaml\n:4\n");
    assert!(heads.try_recv().is_err(), "nothing of it is asked of the API server");

    let asked: [(&[&str], &str, &str); 5] = [
        (
            &["explain", "-n", "shop", "pvc/d"],
            "pvc/data\n:4\n",
            "GET /api/v1/namespaces/shop/persistentvolumeclaims?limit=500 ",
        ),
        (&["explain", "-nshop", "po", ""], "data\nshop\n:4\n", "GET /api/v1/namespaces/shop/pods?limit=500 "),
        (
            &["explain", "--namespace=shop", "pv", "s"],
            "shop\n:4\n",
            "GET /api/v1/persistentvolumes?limit=500 ",
        ),
        (&["doctor", "-n", "sh"], "shop\n:4\n", "GET /api/v1/namespaces?limit=500 "),
        (&["node", "--request-timeout", "5s", ""], "data\nshop\n:4\n", "GET /api/v1/nodes?limit=500 "),
    ];
    for (words, expected, request) in asked {
        assert_eq!(told(words), expected, "{words:?}");
        let head = heads.recv().unwrap();
        assert!(head.starts_with(request), "{words:?}: {head}");
    }
    let words = ["explain", "--as", "alice", "--as-group=dev", "--token", "secret", "va/da"];
    assert_eq!(told(&words), "va/data\n:4\n");
    let head = heads.recv().unwrap().to_ascii_lowercase();
    for line in
        ["impersonate-user: alice\r\n", "impersonate-group: dev\r\n", "authorization: bearer secret\r\n"]
    {
        assert!(head.contains(line), "{head}");
    }
    assert_eq!(told(&["explain", "-n", "../../../healthz?", "pod/"]), ":4\n");
    assert!(heads.try_recv().is_err(), "no namespace has such a name");
}

#[test]
fn kubectl_is_not_kept_waiting_for_names() {
    let folder = folder("completion-late");
    let told = |config: &Path| completed(&folder, config, &["explain", "pv/"]);
    assert_eq!(told(&unreachable_api(&folder)), ":4\n");
    assert_eq!(told(Path::new("/nonexistent/kubeconfig")), ":4\n");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    assert_eq!(told(&kubeconfig(folder.join("silent"), &format!("http://{address}"))), ":4\n");
    // Credentials that take their time: when kubectl has its answer, they are not there yet.
    let ready = folder.join("ready");
    let _ = fs::remove_file(&ready);
    let config = folder.join("slow");
    let content = "{apiVersion: v1, kind: Config, current-context: x,
        clusters: [{name: c, cluster: {server: 'http://ADDRESS'}}], contexts: [{name: x, context: {cluster: c, user: u}}],
        users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never,
                 command: sh, args: [-c, 'exec >&- 2>&-; sleep 30; touch READY']}}}]}";
    let content = content.replace("ADDRESS", &address.to_string()).replace("READY", ready.to_str().unwrap());
    fs::write(&config, content).unwrap();
    assert_eq!(told(&config), ":4\n");
    assert!(!ready.exists());
}
