//! Attributes of file system objects (`fattr4`, RFC 8881 §5).
//!
//! One table declares number, name and type of each attribute. From it follow the structure
//! [`Attributes`], its set of numbers, encoding and decoding in the order of the numbers.

use crate::bitmap::Bitmap;
use crate::limits::ATTRIBUTES_BYTES_MAX;
use crate::status::Status;
use crate::types::{
    DeviceNumber, FileHandle, FileSystemId, FileType, ModeMasked, ModeUmask, Principal, SetTime,
    Time,
};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

macro_rules! attributes {
    ($($number:literal $constant:ident $field:ident: $type:ty,)*) => {
        /// Numbers of attributes.
        pub mod number {
            $(
                #[doc = concat!("The attribute `", stringify!($field), "`.")]
                pub const $constant: u32 = $number;
            )*
        }

        /// Every attribute of the table.
        pub const ALL: Bitmap = Bitmap::of(&[$($number),*]);

        /// Attributes of one object; those that are `None` are not present.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are the attributes of RFC 8881 §5")]
        pub struct Attributes<'a> {
            $(pub $field: Option<$type>,)*
        }

        impl<'a> Attributes<'a> {
            /// The numbers of the attributes that are present.
            #[must_use]
            pub fn numbers(&self) -> Bitmap {
                let mut numbers = Bitmap::EMPTY;
                $(
                    if self.$field.is_some() {
                        numbers = numbers.with($number);
                    }
                )*
                numbers
            }

            /// The attributes whose numbers are in `chosen`.
            #[must_use]
            pub fn only(&self, chosen: &Bitmap) -> Self {
                Self {
                    $($field: self.$field.filter(|_| chosen.contains($number)),)*
                }
            }

            fn decode_one(
                &mut self,
                number: u32,
                from: &mut Decoder<'a>,
            ) -> Result<(), DecodeError> {
                match number {
                    $($number => self.$field = Some(<$type>::decode(from)?),)*
                    _ => return Err(DecodeError::UnknownAttribute),
                }
                Ok(())
            }

            fn encode_values(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                $(
                    if let Some(value) = &self.$field {
                        value.encode(to)?;
                    }
                )*
                Ok(())
            }
        }

        // The values are encoded in the order of the table, which must be that of the numbers.
        const _: () = {
            let numbers: &[u32] = &[$($number),*];
            let mut index = 1;
            while index < numbers.len() {
                assert!(numbers[index - 1] < numbers[index]);
                index += 1;
            }
        };

        #[cfg(test)]
        impl<'a> crate::arbitrary::Arbitrary<'a> for Attributes<'a> {
            fn arbitrary(from: &mut crate::arbitrary::Source<'_>) -> Self {
                let mut attributes = Self::default();
                $(
                    if from.one_in(8) {
                        attributes.$field = Some(crate::arbitrary::Arbitrary::arbitrary(from));
                    }
                )*
                attributes
            }
        }
    };
}

attributes! {
    0 SUPPORTED_ATTRS supported_attrs: Bitmap,
    1 TYPE file_type: FileType,
    2 FH_EXPIRE_TYPE fh_expire_type: u32,
    3 CHANGE change: u64,
    4 SIZE size: u64,
    5 LINK_SUPPORT link_support: bool,
    6 SYMLINK_SUPPORT symlink_support: bool,
    7 NAMED_ATTR named_attr: bool,
    8 FSID fsid: FileSystemId,
    9 UNIQUE_HANDLES unique_handles: bool,
    10 LEASE_TIME lease_time: u32,
    11 RDATTR_ERROR rdattr_error: Status,
    13 ACLSUPPORT aclsupport: u32,
    14 ARCHIVE archive: bool,
    15 CANSETTIME cansettime: bool,
    16 CASE_INSENSITIVE case_insensitive: bool,
    17 CASE_PRESERVING case_preserving: bool,
    18 CHOWN_RESTRICTED chown_restricted: bool,
    19 FILEHANDLE filehandle: FileHandle<'a>,
    20 FILEID fileid: u64,
    21 FILES_AVAIL files_avail: u64,
    22 FILES_FREE files_free: u64,
    23 FILES_TOTAL files_total: u64,
    25 HIDDEN hidden: bool,
    26 HOMOGENEOUS homogeneous: bool,
    27 MAXFILESIZE maxfilesize: u64,
    28 MAXLINK maxlink: u32,
    29 MAXNAME maxname: u32,
    30 MAXREAD maxread: u64,
    31 MAXWRITE maxwrite: u64,
    33 MODE mode: u32,
    34 NO_TRUNC no_trunc: bool,
    35 NUMLINKS numlinks: u32,
    36 OWNER owner: Principal<'a>,
    37 OWNER_GROUP owner_group: Principal<'a>,
    38 QUOTA_AVAIL_HARD quota_avail_hard: u64,
    39 QUOTA_AVAIL_SOFT quota_avail_soft: u64,
    40 QUOTA_USED quota_used: u64,
    41 RAWDEV rawdev: DeviceNumber,
    42 SPACE_AVAIL space_avail: u64,
    43 SPACE_FREE space_free: u64,
    44 SPACE_TOTAL space_total: u64,
    45 SPACE_USED space_used: u64,
    46 SYSTEM system: bool,
    47 TIME_ACCESS time_access: Time,
    48 TIME_ACCESS_SET time_access_set: SetTime,
    49 TIME_BACKUP time_backup: Time,
    50 TIME_CREATE time_create: Time,
    51 TIME_DELTA time_delta: Time,
    52 TIME_METADATA time_metadata: Time,
    53 TIME_MODIFY time_modify: Time,
    54 TIME_MODIFY_SET time_modify_set: SetTime,
    55 MOUNTED_ON_FILEID mounted_on_fileid: u64,
    74 MODE_SET_MASKED mode_set_masked: ModeMasked,
    75 SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap,
    76 FS_CHARSET_CAP fs_charset_cap: u32,
    77 CLONE_BLKSIZE clone_blksize: u32,
    78 SPACE_FREED space_freed: u64,
    79 CHANGE_ATTR_TYPE change_attr_type: u32,
    81 MODE_UMASK mode_umask: ModeUmask,
    82 XATTR_SUPPORT xattr_support: bool,
}

/// Attributes that an operation can set.
pub const SETTABLE: Bitmap = Bitmap::of(&[
    number::SIZE,
    number::ARCHIVE,
    number::HIDDEN,
    number::MODE,
    number::OWNER,
    number::OWNER_GROUP,
    number::SYSTEM,
    number::TIME_ACCESS_SET,
    number::TIME_BACKUP,
    number::TIME_CREATE,
    number::TIME_MODIFY_SET,
    number::MODE_SET_MASKED,
    number::MODE_UMASK,
]);

impl<'a> Xdr<'a> for Attributes<'a> {
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let (numbers, has_others) = Bitmap::decode_known(from)?;
        let mut values = Decoder::new(from.opaque(ATTRIBUTES_BYTES_MAX)?);
        if has_others {
            return Err(DecodeError::UnknownAttribute);
        }
        let mut attributes = Self::default();
        for number in numbers.iter() {
            attributes.decode_one(number, &mut values)?;
        }
        values.finish()?;
        Ok(attributes)
    }

    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        self.numbers().encode(to)?;
        let length = to.mark();
        0_u32.encode(to)?;
        let begin = to.mark();
        self.encode_values(to)?;
        let bytes = to.since(begin);
        if bytes > ATTRIBUTES_BYTES_MAX {
            return Err(EncodeError::Value);
        }
        // All values are multiples of the unit, so no padding follows.
        to.patch(length, bytes as u32);
        Ok(())
    }
}
