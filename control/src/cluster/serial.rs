//! How the plain types are written down where serde does not know how.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

/// Objects that are shared in memory, by name.
pub(super) mod shared {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes each as itself.
    pub(in crate::cluster) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        objects: &BTreeMap<K, Arc<V>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(objects.iter().map(|(name, object)| (name, &**object)))
    }

    /// Reads each into an allocation of its own.
    pub(in crate::cluster) fn deserialize<'de, K, V, D>(from: D) -> Result<BTreeMap<K, Arc<V>>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let objects = BTreeMap::<K, V>::deserialize(from)?;
        Ok(objects.into_iter().map(|(name, object)| (name, Arc::new(object))).collect())
    }
}

/// A VNI, as its number.
pub(super) mod vni {
    use super::*;

    pub(in crate::cluster) fn serialize<S: Serializer>(vni: &Vni, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(vni.get())
    }

    pub(in crate::cluster) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vni, D::Error> {
        Vni::new(u32::deserialize(from)?).ok_or_else(|| D::Error::custom("a VNI has 24 bits"))
    }
}

/// A VNI that may be absent.
pub(super) mod optional_vni {
    use super::*;

    pub(in crate::cluster) fn serialize<S: Serializer>(vni: &Option<Vni>, to: S) -> Result<S::Ok, S::Error> {
        match vni {
            Some(vni) => to.serialize_some(&vni.get()),
            None => to.serialize_none(),
        }
    }

    pub(in crate::cluster) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vni>, D::Error> {
        Ok(Option::<u32>::deserialize(from)?.and_then(Vni::new))
    }
}

/// A MAC, as people write it.
pub(super) mod mac {
    use super::*;

    pub(in crate::cluster) fn serialize<S: Serializer>(mac: &Mac, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mac)
    }

    pub(in crate::cluster) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
        String::deserialize(from)?.parse().map_err(|_| D::Error::custom("not a MAC"))
    }
}

/// A protocol, as its number.
pub(super) mod protocol {
    use super::*;

    pub(in crate::cluster) fn serialize<S: Serializer>(
        protocol: &Protocol,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u8(protocol.0)
    }

    pub(in crate::cluster) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Protocol, D::Error> {
        u8::deserialize(from).map(Protocol)
    }
}
