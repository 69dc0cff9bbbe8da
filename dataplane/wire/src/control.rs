//! Control messages: connecting, listing tables, binding schemas, registering regions.
//!
//! They travel on the port's connection stream (a Unix socket for shared memory), one at a time:
//! the client asks, the server answers with the same sequence number.

use crate::codec::{Reader, Writer};
use crate::limits::{MAX_CONTROL_BYTES, MAX_CREDITS, MAX_LANES, MAX_NAME, VERSION};
use crate::schema::Schema;
use crate::split::SplitRule;
use crate::status::{Refusal, Status};

/// Bytes of a control message's header.
pub const CONTROL_HEADER_BYTES: usize = 16;
/// Most tables in one [`Control::Tables`] page.
pub const TABLES_PER_PAGE: usize = 256;
/// Longest text of a [`Control::Refused`].
pub const MAX_DETAIL: usize = 1024;

/// What the server grants and promises at connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The server's model.
    pub model: String,
    /// The newest generation.
    pub generation: u64,
    /// How requests are to be split; `lanes` is the number of workers.
    pub split: SplitRule,
    /// Request slots a lane.
    pub credits: u16,
    /// Records of a lane's completion queue, a power of two.
    pub completions: u32,
    /// Most ids of one part, over all features.
    pub max_ids: u32,
    /// Most bags of one part times its features.
    pub max_lengths: u32,
    /// Largest region that may be registered, in bytes.
    pub max_region: u64,
}

/// A table as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Its name in schemas.
    pub name: String,
    /// Rows that ids can name.
    pub rows: u64,
    /// Elements a row.
    pub dim: u32,
    /// Row format: 0 f32, 1 int8 with scale and bias as f32, 2 f16, 3 bf16, 4 int8 with scale and bias
    /// as f16, 5 int4.
    pub format: u8,
    /// What ids name rows by: 0 dense (their numbers), 1 hashed (any u64).
    pub kind: u8,
}

/// What a dataplane may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Write results to it.
    Write = 1,
    /// Read request data from it.
    Read = 2,
    /// Both.
    Both = 3,
}

impl Rights {
    /// The rights of a code, or `None` for a code that means none.
    pub fn from_code(code: u32) -> Option<Rights> {
        match code {
            1 => Some(Rights::Write),
            2 => Some(Rights::Read),
            3 => Some(Rights::Both),
            _ => None,
        }
    }

    /// Whether results may be written.
    pub fn write(self) -> bool {
        self != Rights::Read
    }

    /// Whether request data may be read.
    pub fn read(self) -> bool {
        self != Rights::Write
    }
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Client: the first message.
    Hello {
        /// The client's name, for logs and status pages.
        client: String,
        /// Credits wanted on each lane; the server may grant fewer.
        credits: u16,
    },
    /// Server: the connection stands.
    Welcome(Welcome),
    /// Server: the call was refused.
    Refused {
        /// Why, and where.
        refusal: Refusal,
        /// Details for a person.
        detail: String,
    },
    /// Client: describe the tables from number `first` on.
    ListTables {
        /// First table wanted.
        first: u32,
    },
    /// Server: a page of tables.
    Tables {
        /// Tables in all.
        total: u32,
        /// Number of the first one here.
        first: u32,
        /// At most [`TABLES_PER_PAGE`].
        tables: Vec<TableEntry>,
    },
    /// Client: bind a schema.
    Bind(Schema),
    /// Server: the schema is bound.
    Bound {
        /// What requests name it by.
        schema: u32,
    },
    /// Client: register the memory whose descriptor comes with this message.
    Register {
        /// Its size.
        bytes: u64,
        /// What it is for.
        rights: Rights,
    },
    /// Server: the region can be used.
    Registered {
        /// What requests name it by.
        region: u32,
    },
    /// Client: give a region up.
    Unregister {
        /// Which.
        region: u32,
    },
    /// Server: the region is unmapped; nothing will be written to it any more.
    Unregistered {
        /// Which.
        region: u32,
    },
    /// Client, over RDMA: where the records of a lane go.
    LaneOpen {
        /// The lane.
        lane: u16,
        /// Receives that are posted for its records.
        receives: u32,
        /// Address of its record ring.
        address: u64,
        /// Key of the ring's registration.
        key: u32,
    },
    /// Server, over RDMA: where the requests of a lane go.
    LaneOpened {
        /// The lane.
        lane: u16,
        /// Receives that are posted for requests and cancels.
        receives: u32,
        /// Address of its request slots.
        address: u64,
        /// Key of their registration.
        key: u32,
    },
    /// Client, over RDMA: register memory that the client's device knows.
    RegisterRemote {
        /// Its size.
        bytes: u64,
        /// Its address.
        address: u64,
        /// Key of its registration.
        key: u32,
        /// What it is for; the registration has to allow that.
        rights: Rights,
    },
    /// Server, over RDMA: the connection ends, and all records that there will be have been placed.
    Goodbye {
        /// Why.
        status: Status,
        /// Details for a person.
        detail: String,
    },
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const LIST_TABLES: u8 = 4;
const TABLES: u8 = 5;
const BIND: u8 = 6;
const BOUND: u8 = 7;
const REGISTER: u8 = 8;
const REGISTERED: u8 = 9;
const UNREGISTER: u8 = 10;
const UNREGISTERED: u8 = 11;
const LANE_OPEN: u8 = 12;
const LANE_OPENED: u8 = 13;
const REGISTER_REMOTE: u8 = 14;
const GOODBYE: u8 = 15;

impl Control {
    /// The message's bytes. Texts for people (client, model, detail) are cut to their bounds; a table's
    /// or feature's name that is too long is written so that the receiver refuses it.
    ///
    /// # Panics
    /// If a list is longer than its bound, or the whole message is (the sender's mistake; see
    /// [`Schema::check`] for schemas).
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut w = Writer::default();
        w.u16(VERSION);
        w.u8(self.kind());
        w.u8(0);
        w.u32(0);
        w.u32(sequence);
        w.u32(0);
        self.encode_body(&mut w);
        assert!(
            w.bytes.len() <= MAX_CONTROL_BYTES,
            "control message within its bound"
        );
        let len = w.bytes.len() as u32;
        w.bytes[4..8].copy_from_slice(&len.to_le_bytes());
        w.bytes
    }

    fn kind(&self) -> u8 {
        match self {
            Control::Hello { .. } => HELLO,
            Control::Welcome(_) => WELCOME,
            Control::Refused { .. } => REFUSED,
            Control::ListTables { .. } => LIST_TABLES,
            Control::Tables { .. } => TABLES,
            Control::Bind(_) => BIND,
            Control::Bound { .. } => BOUND,
            Control::Register { .. } => REGISTER,
            Control::Registered { .. } => REGISTERED,
            Control::Unregister { .. } => UNREGISTER,
            Control::Unregistered { .. } => UNREGISTERED,
            Control::LaneOpen { .. } => LANE_OPEN,
            Control::LaneOpened { .. } => LANE_OPENED,
            Control::RegisterRemote { .. } => REGISTER_REMOTE,
            Control::Goodbye { .. } => GOODBYE,
        }
    }

    fn encode_body(&self, w: &mut Writer) {
        match self {
            Control::Hello { client, credits } => {
                w.u16(*credits);
                w.text(client, MAX_NAME);
            }
            Control::Welcome(welcome) => encode_welcome(welcome, w),
            Control::Refused { refusal, detail } => {
                w.u16(refusal.status as u16);
                w.zeros(2);
                w.u32(refusal.feature);
                w.u32(refusal.index);
                w.text(detail, MAX_DETAIL);
            }
            Control::ListTables { first } => w.u32(*first),
            Control::Tables {
                total,
                first,
                tables,
            } => {
                assert!(
                    tables.len() <= TABLES_PER_PAGE,
                    "a page of tables within its bound"
                );
                w.u32(*total);
                w.u32(*first);
                w.u32(tables.len() as u32);
                for t in tables {
                    w.name(&t.name);
                    w.u64(t.rows);
                    w.u32(t.dim);
                    w.u8(t.format);
                    w.u8(t.kind);
                    w.zeros(2);
                }
            }
            Control::Bind(schema) => schema.encode_to(w),
            Control::Bound { schema: id } | Control::Registered { region: id } => w.u32(*id),
            Control::Unregister { region } | Control::Unregistered { region } => w.u32(*region),
            Control::Register { bytes, rights } => {
                w.u64(*bytes);
                w.u32(*rights as u32);
            }
            Control::LaneOpen {
                lane,
                receives,
                address,
                key,
            }
            | Control::LaneOpened {
                lane,
                receives,
                address,
                key,
            } => {
                w.u16(*lane);
                w.zeros(2);
                w.u32(*receives);
                w.u64(*address);
                w.u32(*key);
            }
            Control::RegisterRemote {
                bytes,
                address,
                key,
                rights,
            } => {
                w.u64(*bytes);
                w.u64(*address);
                w.u32(*key);
                w.u32(*rights as u32);
            }
            Control::Goodbye { status, detail } => {
                w.u16(*status as u16);
                w.text(detail, MAX_DETAIL);
            }
        }
    }

    /// Parses a message: its sequence number and content.
    ///
    /// # Errors
    /// A [`Refusal`]: UnsupportedVersion, Unsupported for an unknown kind, Malformed, TooLarge.
    pub fn parse(bytes: &[u8]) -> Result<(u32, Control), Refusal> {
        if bytes.len() > MAX_CONTROL_BYTES {
            return Err(Refusal::whole(Status::TooLarge));
        }
        let mut r = Reader::new(bytes);
        if r.u16()? != VERSION {
            return Err(Refusal::whole(Status::UnsupportedVersion));
        }
        let kind = r.u8()?;
        r.zeros(1)?;
        if r.u32()? as usize != bytes.len() {
            return Err(Refusal::whole(Status::Malformed));
        }
        let sequence = r.u32()?;
        r.zeros(4)?;
        let message = parse_body(kind, &mut r)?;
        r.end()?;
        Ok((sequence, message))
    }

    /// The sequence number of a message that may be refused otherwise; 0 where it is too short.
    pub fn sequence(bytes: &[u8]) -> u32 {
        bytes
            .get(8..12)
            .map_or(0, |b| u32::from_le_bytes(b.try_into().expect("4 bytes")))
    }
}

fn encode_welcome(v: &Welcome, w: &mut Writer) {
    w.text(&v.model, MAX_NAME);
    w.u64(v.generation);
    w.u16(v.split.lanes);
    w.u16(v.credits);
    w.u32(v.split.min_bags);
    w.u32(v.completions);
    w.u32(v.max_ids);
    w.u32(v.max_lengths);
    w.u64(v.max_region);
}

fn parse_welcome(r: &mut Reader<'_>) -> Result<Welcome, Refusal> {
    let (model, generation) = (r.text(MAX_NAME)?, r.u64()?);
    let (lanes, credits, min_bags) = (r.u16()?, r.u16()?, r.u32()?);
    let welcome = Welcome {
        model,
        generation,
        split: SplitRule { lanes, min_bags },
        credits,
        completions: r.u32()?,
        max_ids: r.u32()?,
        max_lengths: r.u32()?,
        max_region: r.u64()?,
    };
    let lanes_good = (1..=MAX_LANES).contains(&lanes);
    let credits_good = (1..=MAX_CREDITS).contains(&credits);
    if lanes_good && credits_good && min_bags > 0 && welcome.completions.is_power_of_two() {
        Ok(welcome)
    } else {
        Err(Refusal::whole(Status::Malformed))
    }
}

fn parse_tables(r: &mut Reader<'_>) -> Result<Control, Refusal> {
    let (total, first, count) = (r.u32()?, r.u32()?, r.u32()? as usize);
    if count > TABLES_PER_PAGE {
        return Err(Refusal::whole(Status::TooLarge));
    }
    let mut tables = Vec::with_capacity(count);
    for _ in 0..count {
        let entry = TableEntry {
            name: r.text(MAX_NAME)?,
            rows: r.u64()?,
            dim: r.u32()?,
            format: r.u8()?,
            kind: r.u8()?,
        };
        r.zeros(2)?;
        tables.push(entry);
    }
    Ok(Control::Tables {
        total,
        first,
        tables,
    })
}

fn parse_rights(r: &mut Reader<'_>) -> Result<Rights, Refusal> {
    Rights::from_code(r.u32()?).ok_or(Refusal::whole(Status::Malformed))
}

fn parse_lane(r: &mut Reader<'_>) -> Result<(u16, u32, u64, u32), Refusal> {
    let lane = r.u16()?;
    r.zeros(2)?;
    Ok((lane, r.u32()?, r.u64()?, r.u32()?))
}

fn parse_body(kind: u8, r: &mut Reader<'_>) -> Result<Control, Refusal> {
    Ok(match kind {
        HELLO => {
            let credits = r.u16()?;
            Control::Hello {
                client: r.text(MAX_NAME)?,
                credits,
            }
        }
        WELCOME => Control::Welcome(parse_welcome(r)?),
        REFUSED => {
            let status = Status::from_code(r.u16()?).ok_or(Refusal::whole(Status::Malformed))?;
            r.zeros(2)?;
            let refusal = Refusal {
                status,
                feature: r.u32()?,
                index: r.u32()?,
            };
            Control::Refused {
                refusal,
                detail: r.text(MAX_DETAIL)?,
            }
        }
        LIST_TABLES => Control::ListTables { first: r.u32()? },
        TABLES => parse_tables(r)?,
        BIND => Control::Bind(Schema::parse_from(r)?),
        BOUND => Control::Bound { schema: r.u32()? },
        REGISTER => Control::Register {
            bytes: r.u64()?,
            rights: parse_rights(r)?,
        },
        REGISTERED => Control::Registered { region: r.u32()? },
        UNREGISTER => Control::Unregister { region: r.u32()? },
        UNREGISTERED => Control::Unregistered { region: r.u32()? },
        LANE_OPEN => {
            let (lane, receives, address, key) = parse_lane(r)?;
            Control::LaneOpen {
                lane,
                receives,
                address,
                key,
            }
        }
        LANE_OPENED => {
            let (lane, receives, address, key) = parse_lane(r)?;
            Control::LaneOpened {
                lane,
                receives,
                address,
                key,
            }
        }
        REGISTER_REMOTE => Control::RegisterRemote {
            bytes: r.u64()?,
            address: r.u64()?,
            key: r.u32()?,
            rights: parse_rights(r)?,
        },
        GOODBYE => Control::Goodbye {
            status: Status::from_code(r.u16()?).ok_or(Refusal::whole(Status::Malformed))?,
            detail: r.text(MAX_DETAIL)?,
        },
        _ => return Err(Refusal::whole(Status::Unsupported)),
    })
}
