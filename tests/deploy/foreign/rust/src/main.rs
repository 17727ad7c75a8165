//! Sends or receives the numbers 0, 1, 2, ... of each task, over one stream: `client send --address ...`,
//! `client recv ...`. docs/reference/wire.md has the rules; it does not resume.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::error::Error;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::Streaming;

use pb::messaging_client::MessagingClient;
use pb::{recv_request, recv_response, send_request, send_response};

#[allow(dead_code)] // a client needs a part of it
mod pb {
    tonic::include_proto!("tuplewire.v1");
}

const MOST_FRAMES: usize = 8; // on the way at once; the protocol allows 64
const FRAME_MESSAGES: usize = 100;
const WINDOW_MESSAGES: u64 = 100;
const WINDOW_BYTES: u64 = 1024 * 1024;
const SILENCE: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(2);

type Failure = Box<dyn Error>;

struct Settings {
    words: HashMap<String, String>,
    tasks: Vec<i32>,
    count: u64,
    incarnation: u64, // grows with every start
}

impl Settings {
    fn read(arguments: &[String]) -> Result<Settings, Failure> {
        let pairs = arguments.chunks_exact(2);
        let words: HashMap<_, _> =
            pairs.map(|pair| (pair[0].trim_start_matches("--").to_string(), pair[1].clone())).collect();
        Ok(Settings {
            tasks: words["tasks"].split(',').map(str::parse).collect::<Result<_, _>>()?,
            count: words["count"].parse()?,
            incarnation: SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64,
            words,
        })
    }

    async fn channel(&self) -> Result<Channel, Failure> {
        let address = &self.words["address"];
        let target = match self.words.get("ca") {
            _ if address.starts_with("unix:") => address.clone(),
            None => format!("http://{address}"),
            Some(_) => format!("https://{address}"),
        };
        let mut endpoint =
            Endpoint::from_shared(target)?.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(KEEPALIVE);
        if let Some(ca) = self.words.get("ca") {
            let own = Identity::from_pem(fs::read(&self.words["cert"])?, fs::read(&self.words["key"])?);
            let authority = Certificate::from_pem(fs::read(ca)?);
            endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority).identity(own))?;
        }
        Ok(endpoint.connect().await?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let settings = Settings::read(&arguments[1..])?;
    let messaging = MessagingClient::new(settings.channel().await?);
    let report = match arguments[0].as_str() {
        "send" => send(&settings, messaging).await?,
        _ => receive(&settings, messaging).await?,
    };
    println!("{report}");
    Ok(())
}

/// What comes next; nothing after a second without news.
async fn next<T>(heard: &mut Streaming<T>) -> Result<Option<T>, Failure> {
    match timeout(SILENCE, heard.message()).await {
        Err(_) => Ok(None),
        Ok(answer) => Ok(Some(answer?.ok_or("the worker has ended the stream")?)),
    }
}

async fn send(settings: &Settings, mut messaging: MessagingClient<Channel>) -> Result<String, Failure> {
    let mut waiting: HashMap<i32, VecDeque<String>> = settings
        .tasks
        .iter()
        .map(|&task| (task, (0..settings.count).map(|number| number.to_string()).collect()))
        .collect();
    let mut in_flight: VecDeque<pb::Frame> = VecDeque::new();
    let mut credits: HashMap<i32, pb::TaskCredit> = HashMap::new();
    let mut initial: Option<pb::TaskCredit> = None;
    let mut sent: HashMap<i32, (u64, u64)> = HashMap::new();
    let accepted = settings.tasks.len() as i64 * settings.count as i64;
    let (mut acknowledged, mut refused) = (0, 0);
    let (mut sequence, mut heard_of) = (0, 0);

    let (requests, stream) = mpsc::unbounded_channel();
    // Where the other side is gone, what is heard says so.
    let say = |kind| drop(requests.send(pb::SendRequest { kind: Some(kind) }));
    say(send_request::Kind::Hello(pb::Hello {
        protocol_version: 1,
        topology: settings.words["topology"].clone(),
        sender_id: settings.words["id"].clone(),
        incarnation: settings.incarnation,
        ack_mode: pb::AckMode::Queued as i32,
        ..Default::default()
    }));
    let mut heard = messaging.send(UnboundedReceiverStream::new(stream)).await?.into_inner();
    while acknowledged + refused < accepted {
        match next(&mut heard).await? {
            None if initial.is_some() => {
                let probe = pb::Probe { acknowledged_sequence: heard_of, ..Default::default() };
                say(send_request::Kind::Probe(probe));
            }
            None => {}
            Some(response) => match response.kind {
                Some(send_response::Kind::Welcome(welcome)) => {
                    initial = welcome.initial_credit;
                    credits.extend(welcome.credits.into_iter().map(|credit| (credit.task, credit)));
                }
                Some(send_response::Kind::Ack(ack)) if ack.previous_sequence <= heard_of => {
                    for refusal in &ack.refusals {
                        refused += refusal.messages as i64;
                        acknowledged -= refusal.messages as i64; // counted below, with its frame
                    }
                    heard_of = heard_of.max(ack.sequence);
                    while in_flight.front().is_some_and(|frame| frame.sequence <= heard_of) {
                        let settled = in_flight.pop_front().unwrap_or_default();
                        acknowledged += settled.groups.iter().map(|group| group.lengths.len() as i64).sum::<i64>();
                    }
                    credits.extend(ack.credits.into_iter().map(|credit| (credit.task, credit)));
                }
                _ => {}
            },
        }
        let Some(initial) = &initial else { continue };
        while in_flight.len() < MOST_FRAMES {
            let taken = settings.tasks.iter().map(|task| {
                let credit = credits.get(task).unwrap_or(initial);
                take(*task, waiting.entry(*task).or_default(), credit, sent.entry(*task).or_default())
            });
            let groups: Vec<_> = taken.filter(|group| !group.lengths.is_empty()).collect();
            if groups.is_empty() {
                break;
            }
            sequence += 1;
            let frame = pb::Frame { sequence, groups, ..Default::default() };
            in_flight.push_back(frame.clone());
            say(send_request::Kind::Frame(frame));
        }
    }
    say(send_request::Kind::Goodbye(pb::Goodbye::default()));
    drop(requests);
    while heard.message().await?.is_some() {}
    Ok(format!(
        r#"{{"accepted": {accepted}, "acknowledged": {acknowledged}, "refused": {refused}, "pending": 0}}"#
    ))
}

/// As many messages as the task's credit allows; sent: messages and bytes, since the session's start.
fn take(task: i32, waiting: &mut VecDeque<String>, credit: &pb::TaskCredit, sent: &mut (u64, u64)) -> pb::Group {
    let mut group = pb::Group { task, ..Default::default() };
    while group.lengths.len() < FRAME_MESSAGES && sent.0 < credit.messages && sent.1 < credit.bytes {
        let Some(payload) = waiting.pop_front() else { break };
        sent.0 += 1;
        sent.1 += payload.len() as u64;
        group.lengths.push(payload.len() as u32);
        group.data.extend_from_slice(payload.as_bytes());
    }
    group
}

async fn receive(settings: &Settings, mut messaging: MessagingClient<Channel>) -> Result<String, Failure> {
    let mut received: BTreeMap<i32, u64> = settings.tasks.iter().map(|&task| (task, 0)).collect();
    let mut numbers = received.clone(); // which comes next
    let mut problems: Vec<String> = Vec::new();

    let (requests, stream) = mpsc::unbounded_channel();
    let say = |kind| drop(requests.send(pb::RecvRequest { kind: Some(kind) }));
    say(recv_request::Kind::Subscribe(pb::Subscribe {
        protocol_version: 1,
        topology: settings.words["topology"].clone(),
        consumer_id: settings.words["id"].clone(),
        incarnation: settings.incarnation,
        tasks: cursors(&received),
        ..Default::default()
    }));
    let mut heard = messaging.recv(UnboundedReceiverStream::new(stream)).await?.into_inner();
    while problems.is_empty() && numbers.values().any(|&number| number < settings.count) {
        match next(&mut heard).await?.and_then(|response| response.kind) {
            Some(recv_response::Kind::Subscribed(subscribed)) => {
                received.extend(subscribed.tasks.iter().map(|start| (start.task, start.received_sequence)));
            }
            Some(recv_response::Kind::Frame(frame)) => {
                for group in frame.groups {
                    let mut rest = group.data.as_slice();
                    for length in &group.lengths {
                        let (payload, others) = rest.split_at(*length as usize);
                        rest = others;
                        let number = numbers.entry(group.task).or_default();
                        if payload != number.to_string().as_bytes() {
                            problems.push(format!("task {}: {payload:?} came, not {number}", group.task));
                        }
                        *number += 1;
                    }
                    received.insert(group.task, group.first_sequence + group.lengths.len() as u64 - 1);
                }
            }
            Some(recv_response::Kind::Probe(_)) => {}
            _ => continue,
        }
        say(recv_request::Kind::Progress(pb::Progress { tasks: cursors(&received) }));
    }
    say(recv_request::Kind::Goodbye(pb::Goodbye::default()));
    drop(requests);
    while heard.message().await?.is_some() {}
    let counts: Vec<_> = numbers.iter().map(|(task, number)| format!("\"{task}\": {number}")).collect();
    let counts = counts.join(", ");
    Ok(format!(r#"{{"received": {{{counts}}}, "repeated": 0, "problems": {problems:?}}}"#))
}

/// Acknowledges everything that has come, and makes room for as much again.
fn cursors(received: &BTreeMap<i32, u64>) -> Vec<pb::TaskCursor> {
    let cursor = |(&task, &sequence): (&i32, &u64)| pb::TaskCursor {
        task,
        acknowledged_sequence: sequence,
        received_sequence: sequence,
        credit_sequence: sequence + WINDOW_MESSAGES,
        credit_bytes: WINDOW_BYTES,
        ..Default::default()
    };
    received.iter().map(cursor).collect()
}
