//! An API server behind proxies: by a name that only they know, and at an address of this machine.

use std::net::SocketAddr;

use serde_json::json;
use testbed::forward_proxy::ForwardProxy;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use super::{
    rotation_tests::{HIDDEN, Rotated, status},
    *,
};

/// A server, and a proxy that knows it by its name and by its address.
async fn stage() -> (Rotated, ForwardProxy) {
    let server = Rotated::start().await;
    server.rotate(true, "token");
    let address: SocketAddr = server.address.parse().unwrap();
    let by_name = format!("{HIDDEN}:443");
    let proxy = ForwardProxy::start(&[(&by_name, address), (&server.address, address)]).await.unwrap();
    (server, proxy)
}

/// Speaks TLS in front of a proxy, with the certificate of the server.
async fn over_tls(server: &Rotated, proxy: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, tls) = (listener.local_addr().unwrap(), server.tls());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = tls.accept(stream).await else { return };
                let mut proxy = TcpStream::connect(proxy).await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut proxy).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn m3_a_server_that_only_the_proxy_can_look_up_is_reached_through_it() {
    let (server, proxy) = stage().await;
    let (plain, tls) = (proxy.address(), over_tls(&server, proxy.address()).await);
    let by_name = format!("https://{HIDDEN}");
    let by_address = format!("https://{}", server.address);
    // the server, how its certificate names it if not so, the proxy; what the proxy is asked
    let cases = [
        (&by_name, None, format!("http://{plain}"), format!("CONNECT {HIDDEN}:443")),
        (&by_name, None, format!("http://u:p%40@{plain}"), format!("CONNECT {HIDDEN}:443 Basic dTpwQA==")),
        (&by_name, Some("127.0.0.1"), format!("https://{tls}"), format!("CONNECT {HIDDEN}:443")),
        (&by_name, Some(HIDDEN), format!("https://{tls}"), format!("CONNECT {HIDDEN}:443")),
        (&by_name, None, format!("socks5://{plain}"), format!("SOCKS5 {HIDDEN}:443")),
        (&by_name, None, format!("socks5h://u:p%40@{plain}"), format!("SOCKS5 {HIDDEN}:443 u:p@")),
        // On this machine, too, if the kubeconfig itself names the proxy.
        (&by_address, None, format!("http://{plain}"), format!("CONNECT {}", server.address)),
    ];
    for (url, name, proxy_url, asked) in cases {
        let cluster = json!({ "server": url, "proxy-url": proxy_url, "tls-server-name": name });
        let kubeconfig = server.kubeconfig(&cluster);
        let daemon = ApiServer::find(Some(&kubeconfig)).await.unwrap();
        let choice = Choice { kubeconfig: Some(kubeconfig), ..Choice::default() };
        let command = ApiServer::choose(&choice).await.unwrap();
        for api in [daemon, command] {
            assert_eq!(status(&api.client().unwrap()).await, Some(200), "{cluster}");
            assert_eq!(proxy.asked(), [asked.as_str()], "{cluster}");
        }
    }
}

#[tokio::test]
async fn m3_what_fails_on_the_way_names_the_proxy_and_not_its_password() {
    let (server, proxy) = stage().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let address = proxy.address();
    // The kernel takes connections that nobody accepts.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = silent.local_addr().unwrap();
    // the name of the server, the proxy; what is said
    let cases = [
        (
            "nobody.example",
            format!("http://u:secret@{address}"),
            format!("through the proxy {address}: tunnel error"),
        ),
        (
            "nobody.example",
            format!("socks5://u:secret@{address}"),
            format!("through the proxy {address}: SOCKS error"),
        ),
        (HIDDEN, format!("http://u:secret@{gone}"), format!("through the proxy {gone}: tunnel error")),
        (
            HIDDEN,
            format!("http://u:secret@{silent_at}"),
            format!("through the proxy {silent_at}: no answer within 4s"),
        ),
        (
            HIDDEN,
            format!("socks5://u:secret@{silent_at}"),
            format!("through the proxy {silent_at}: no answer within 4s"),
        ),
        // An HTTPS proxy that does not speak TLS.
        (HIDDEN, format!("https://u:secret@{address}"), format!("through the proxy {address}: tunnel error")),
    ];
    for (name, proxy_url, expected) in cases {
        let cluster = json!({ "server": format!("https://{name}"), "proxy-url": proxy_url });
        let api = ApiServer::find(Some(&server.kubeconfig(&cluster))).await.unwrap();
        let error = api.client().unwrap().apiserver_version().await.unwrap_err();
        let said = crate::error_chain(&error);
        assert!(said.contains(&expected) && !said.contains("secret"), "{cluster}: {said}");
    }
    for proxy_url in ["ftp://u:secret@own", "own:3128"] {
        let cluster = json!({ "server": format!("https://{HIDDEN}"), "proxy-url": proxy_url });
        let kubeconfig = server.kubeconfig(&cluster);
        let error = ApiServer::find(Some(&kubeconfig)).await.unwrap().client().err().unwrap().to_string();
        let expected = format!("--kubeconfig {}: proxy-url is no URL of a proxy", kubeconfig.display());
        assert!(error.starts_with(&expected) && !error.contains("secret"), "{error}");
    }
}
