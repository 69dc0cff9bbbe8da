//! The program follows a control plane inside TLS, and serves whatever becomes of that.

#[path = "support/looking.rs"]
mod looking;
#[path = "support/plane.rs"]
mod plane;
#[path = "support/program.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rowmill_link::{Admission, TablePolicy};
use rowmill_trust::development::{Authority, Issued, Validity};
use rowmill_trust::{ServerFiles, Token};

use looking::{look_up, wait_until};
use plane::Plane;
use support::{MODEST, Place, page, ready, run};

/// Rows of `f`, of 64 bytes and eight more in the cache, in two shards with sets of 16.
const SET: u64 = 2 * 16 * 72;
const HOUR: Duration = Duration::from_secs(3600);

fn valid() -> Validity {
    SystemTime::now() - HOUR..SystemTime::now() + HOUR
}

fn put(folder: &Path, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
    let paths = (folder.join(name), folder.join(format!("{name}-key")));
    fs::write(&paths.0, &issued.certificate).unwrap();
    fs::write(&paths.1, &issued.key).unwrap();
    fs::set_permissions(&paths.1, fs::Permissions::from_mode(0o600)).unwrap();
    paths
}

/// What an authority has issued, in a folder.
struct Papers {
    folder: PathBuf,
    authority: Authority,
}

impl Papers {
    fn new(place: &Place, name: &str) -> Papers {
        let folder = place.path(name);
        fs::create_dir(&folder).unwrap();
        let authority = Authority::new(&valid()).unwrap();
        fs::write(folder.join("ca"), authority.certificate()).unwrap();
        let who = "rowmill://dataplane/test".parse().unwrap();
        put(&folder, "own", &authority.client(&who, &valid()).unwrap());
        Papers { folder, authority }
    }

    fn server(&self, host: &str, validity: &Validity) -> ServerFiles {
        let issued = self.authority.server(&[host.into()], validity).unwrap();
        let (certificate, key) = put(&self.folder, "server", &issued);
        ServerFiles {
            certificate,
            key,
            client_ca: Some(self.folder.join("ca")),
            takes_others: false,
        }
    }
}

fn configure(place: &Place, address: &str, control: &str) -> PathBuf {
    let more = format!(
        "[cache]\npage_cache = \"allow\"\nbudget_ms = 20000\narena_bytes = 60000\n\
         [[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = {}\n\
         [control]\naddress = \"{address}\"\nname = \"test\"\n{control}\n",
        20 * SET,
    );
    place.configure("", &(more + MODEST))
}

fn own(papers: &Papers) -> String {
    let [ca, own, key] = ["ca", "own", "own-key"].map(|name| papers.folder.join(name));
    format!(
        "ca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"",
        ca.display(),
        own.display(),
        key.display()
    )
}

fn share(sets: u64) -> Vec<TablePolicy> {
    vec![TablePolicy {
        table: "f".into(),
        cache_bytes: Some(sets * SET),
        threshold: 0,
        admission: Admission::Built,
        pinned: Vec::new(),
    }]
}

#[test]
fn certificates_that_fail_are_told_it_serves_and_rejoins() {
    let place = Place::new();
    let papers = Papers::new(&place, "papers");
    let others = Papers::new(&place, "others");
    let good = || papers.server("127.0.0.1", &valid()).read().unwrap();
    let plane = Plane::secured(good());
    let config = configure(&place, &format!("https://{}", plane.address), &own(&papers));
    let (_running, address) = ready(&config);
    plane.publish("c", 1, 1, share(9));
    plane.report("share", |report| report.tables[0].cache_bytes == 9 * SET);
    let ids: Vec<u32> = (0..100).collect();
    let over = SystemTime::now() - HOUR..SystemTime::now() - HOUR / 2;
    // At once, since each is written where the one before was.
    let read = |papers: &Papers, host: &str, validity: &Validity| {
        papers.server(host, validity).read().unwrap()
    };
    let bad = [
        (
            read(&others, "127.0.0.1", &valid()),
            "`ca` that is set here",
        ),
        (read(&papers, "127.0.0.2", &valid()), "is for another name"),
        (read(&papers, "127.0.0.1", &over), "has expired"),
    ];
    for (bad, why) in bad {
        plane.secure_with(Some(bad));
        wait_until(address, why, |status| {
            let error = status["control"]["last_error"].as_str();
            status["control"]["connected"] == false
                && error.is_some_and(|error| error.contains(why))
        });
        look_up(&place, address, &ids);
        assert_eq!(page(address, "/healthz").0, 200);
        plane.secure_with(Some(good()));
        wait_until(address, "connection", |status| {
            status["control"]["connected"] == true
        });
    }
    // A server without TLS.
    plane.secure_with(None);
    wait_until(address, "plain HTTP", |status| {
        let error = status["control"]["last_error"].as_str();
        error.is_some_and(|error| error.contains("is no TLS") || error.contains("ended"))
    });
    look_up(&place, address, &ids);
    // Its own files change while it runs: both sides are another authority's now.
    plane.secure_with(Some(others.server("127.0.0.1", &valid()).read().unwrap()));
    for name in ["ca", "own", "own-key"] {
        fs::copy(others.folder.join(name), papers.folder.join(name)).unwrap();
    }
    plane.publish("c", 1, 2, share(5));
    plane.report("share", |report| report.tables[0].cache_bytes == 5 * SET);
}

#[test]
fn who_stalls_in_a_handshake_is_given_up() {
    let place = Place::new();
    let papers = Papers::new(&place, "papers");
    // Connections come about, and nobody speaks.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let (_running, address) = ready(&configure(&place, &format!("https://{at}"), &own(&papers)));
    wait_until(address, "end", |status| {
        let error = status["control"]["last_error"].as_str();
        error.is_some_and(|error| error.contains("the handshake of TLS in time"))
    });
    look_up(&place, address, &[1, 2, 3]);
}

#[test]
fn a_token_is_shown_and_files_that_fail_are_told() {
    let place = Place::new();
    let papers = Papers::new(&place, "papers");
    let open = ServerFiles {
        takes_others: true,
        ..papers.server("127.0.0.1", &valid())
    };
    let plane = Plane::secured(open.read().unwrap());
    let (token, file) = (Token::draw().unwrap(), place.path("token"));
    let control = format!(
        "ca = \"{}\"\ntoken_file = \"{}\"",
        papers.folder.join("ca").display(),
        file.display()
    );
    let config = configure(&place, &format!("https://{}", plane.address), &control);
    let (_running, address) = ready(&config);
    wait_until(address, "a reason", |status| {
        let error = status["control"]["last_error"].as_str();
        error.is_some_and(|error| error.contains("cannot read") && error.contains("token"))
    });
    fs::write(&file, token.secret()).unwrap();
    plane.report("report", |_| true);
    let shown = plane.wait("token", |known| known.authorization.clone());
    assert_eq!(shown, format!("Bearer {}", token.secret()));
    // Which `--check` tells, too.
    let (output, said) = run(&config, true);
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &said;
    assert!(told.contains("everybody on this host may read"), "{told}");
    fs::write(&file, "").unwrap();
    let (output, said) = run(&config, true);
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &said;
    assert!(
        told.contains("it is not followed until that is right"),
        "{told}"
    );
}
