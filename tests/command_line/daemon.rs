//! The daemon as a process, asked over its port.

use super::*;

/// A running daemon whose API server does not answer. Killed if a test fails.
pub struct Daemon {
    child: Child,
    pub address: String,
    pub folder: PathBuf,
    /// Of a user who may read everything.
    master: (CertificateDer<'static>, KeyPair),
    /// Kept open, if no test reads it.
    pub unread_log: Option<BufReader<ChildStderr>>,
}

impl Daemon {
    pub fn start(name: &str) -> Self {
        let mut daemon = Self::start_unread(name, &[]);
        // The rest of the log is read, or lines would be dropped.
        let mut log = daemon.unread_log.take().unwrap();
        std::thread::spawn(move || log.read_to_string(&mut String::new()));
        daemon
    }

    /// Of its log, only the first lines are read.
    pub fn start_unread(name: &str, flags: &[&str]) -> Self {
        let folder = folder(name);
        let authorities = format!("--client-ca-file={}", folder.join("ca.crt").display());
        Self::start_in(folder, flags.iter().copied().chain([authorities.as_str()]))
    }

    pub fn start_in<'a>(folder: PathBuf, flags: impl IntoIterator<Item = &'a str>) -> Self {
        let kubeconfig = unreachable_api(&folder);
        let master = authority(&folder.join("ca.crt"));
        // Free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = mooring()
            .args(["run", "--bind-address=127.0.0.1", "--logging-format=json"])
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", folder.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(address) = line["address"].as_str() {
                break address.to_owned();
            }
        };
        let daemon = Self { child, address, folder, master, unread_log: Some(log) };
        // The socket listens, but the certificate may still be in the making.
        Daemon::wait_until(|| daemon.folder.join("mooring.crt").exists());
        daemon
    }

    pub fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    pub fn connect(&self, is_master: bool) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.join("mooring.crt")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = if is_master {
            let (certificate, key) = &self.master;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            config.with_client_auth_cert(vec![certificate.clone()], key).unwrap()
        } else {
            config.with_no_client_auth()
        };
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        StreamOwned::new(connection, stream)
    }

    pub fn ask(&self, is_master: bool, path: &str) -> String {
        self.ask_with(is_master, path, "")
    }

    pub fn ask_with(&self, is_master: bool, path: &str, header: &str) -> String {
        let mut stream = self.connect(is_master);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The whole answer to a request with a body.
    pub fn send(&self, is_master: bool, method: &str, path: &str, body: &str) -> Vec<u8> {
        let mut stream = self.connect(is_master);
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    pub fn get(&self, path: &str) -> String {
        self.ask(true, path)
    }

    pub fn wait_until(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    /// Asks again until the answer contains the text.
    pub fn wait_for(&self, path: &str, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.get(path);
            if answer.contains(text) || Instant::now() > deadline {
                return answer;
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes the certificate of a new authority, and returns whom it vouches for.
fn authority(file: &std::path::Path) -> (CertificateDer<'static>, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let own: &rcgen::Certificate = authority.as_ref();
    fs::write(file, pem::encode(&pem::Pem::new("CERTIFICATE", own.der().to_vec()))).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "master");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &authority).unwrap().into(), key)
}
