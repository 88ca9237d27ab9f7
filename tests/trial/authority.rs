//! The API servers' certificate, and the subject's file of the authorities that it trusts.
//!
//! Each authority is below one that all others trust, so that only the subject sees a change.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use test_support::{control_plane::ControlPlane, process::temporary_folder, visitor::Authority};
use tokio::net::TcpStream;

use crate::front::connect;

/// By then an API server has another certificate, if it runs: it watches the file.
const LONGEST: Duration = Duration::from_secs(5);

/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// An authority, and the file in which the subject finds it.
pub struct AuthorityFile {
    file: PathBuf,
    now: Authority,
    count: usize,
}

impl AuthorityFile {
    pub fn write() -> Self {
        let file = temporary_folder("authorities").join("ca.crt");
        let authority = Self { file, now: number(1), count: 1 };
        authority.forget_former();
        authority
    }

    pub fn path(&self) -> &Path {
        &self.file
    }

    /// A certificate of the API servers, with all that vouch for it, and its key.
    pub fn vouch(&self) -> (String, String) {
        let servers = self.now.vouch_for_server();
        let chain = [&servers.certificate, &self.now.file(), &Authority::of_the_test().file()].map(read);
        (chain.concat(), read(&servers.key))
    }

    /// Puts another authority beside the one of now.
    fn renew(&mut self) {
        self.count += 1;
        let former = std::mem::replace(&mut self.now, number(self.count));
        self.replace(&[former.file(), self.now.file()].map(|file| read(&file)).concat());
    }

    /// The same, and has it vouch for the API servers.
    pub async fn rotate(&mut self, plane: &ControlPlane, ports: [u16; 2]) {
        self.renew();
        let (chain, key) = self.vouch();
        plane.replace_certificate(&chain, &key);
        for port in ports {
            // One may be down.
            let _ = tokio::time::timeout(LONGEST, self.shown(port)).await;
        }
    }

    /// Takes the former one out of the file.
    pub fn forget_former(&self) {
        self.replace(&read(&self.now.file()));
    }

    fn replace(&self, authorities: &str) {
        let written = self.file.with_extension("new");
        std::fs::write(&written, authorities).expect("write authorities");
        std::fs::rename(&written, &self.file).expect("replace authorities");
    }

    /// Waits until a server shows a certificate of the authority of now.
    async fn shown(&self, port: u16) {
        let mut pause = tokio::time::interval(PAUSE);
        loop {
            pause.tick().await;
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            if connect(&self.now.file(), server).await.is_ok() {
                return;
            }
        }
    }
}

fn number(count: usize) -> Authority {
    Authority::of_the_test().below(&format!("authority {count}"))
}

fn read(file: &PathBuf) -> String {
    std::fs::read_to_string(file).expect("read a certificate")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::acceptor;

    #[tokio::test]
    async fn only_who_reads_the_file_again_trusts_the_next_certificate() {
        let folder = temporary_folder("rotation");
        let [certificates, key, read_once] = ["chain", "key", "once"].map(|name| folder.join(name));
        let mut authority = AuthorityFile::write();
        std::fs::copy(authority.path(), &read_once).unwrap();
        let (file, above) = (authority.path().to_owned(), Authority::of_the_test().file());
        let trusted = async |authority: &AuthorityFile| {
            let (chain, private) = authority.vouch();
            std::fs::write(&certificates, chain).unwrap();
            std::fs::write(&key, private).unwrap();
            let mut all = Vec::new();
            for trusting in [&file, &read_once, &above] {
                let (client, server) = tokio::io::duplex(1 << 16);
                let accepting = acceptor(&certificates, &key).accept(server);
                all.push(tokio::join!(connect(trusting, client), accepting).0.is_ok());
            }
            all
        };
        assert_eq!(trusted(&authority).await, [true, true, true]);
        for _ in 0..2 {
            authority.renew();
            assert_eq!(trusted(&authority).await, [true, false, true]);
            authority.forget_former();
            assert_eq!(trusted(&authority).await, [true, false, true]);
        }
    }
}
