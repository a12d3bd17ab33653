//! Checks at compile time that the structures shared with C have the layout of rdma-core's headers
//! on 64-bit machines.

use std::mem::{offset_of, size_of};

use rdma_sys::{
    bind_mw_t, ibv_async_event, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_device,
    ibv_device_attr, ibv_mr, ibv_mw, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_wc, rdma_addr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

use super::device::AsyncEvent;
use crate::request::Sge;

macro_rules! sizes {
    ($($structure:ty = $size:literal;)*) => {
        $(const _: () = assert!(size_of::<$structure>() == $size);)*
    };
}

macro_rules! offsets {
    ($($structure:ty { $($field:ident = $offset:literal,)* })*) => {
        $($(const _: () = assert!(offset_of!($structure, $field) == $offset);)*)*
    };
}

sizes! {
    usize = 8;
    ibv_async_event = 16;
    ibv_comp_channel = 16;
    ibv_context = 328;
    ibv_context_ops = 256;
    ibv_cq = 128;
    ibv_device = 664;
    ibv_device_attr = 232;
    ibv_mr = 48;
    ibv_mw = 32;
    ibv_port_attr = 52;
    ibv_qp = 160;
    ibv_qp_attr = 144;
    ibv_qp_cap = 20;
    ibv_qp_init_attr = 64;
    ibv_recv_wr = 32;
    ibv_send_wr = 128;
    ibv_sge = 16;
    ibv_srq = 128;
    ibv_srq_attr = 12;
    ibv_srq_init_attr = 24;
    ibv_wc = 48;
    rdma_addr = 296;
    rdma_cm_event = 80;
    rdma_cm_id = 416;
    rdma_conn_param = 24;
    rdma_event_channel = 4;
    AsyncEvent = 16;
    Sge = 16;
}

offsets! {
    ibv_async_event { event_type = 8, }
    AsyncEvent { event_type = 8, }
    ibv_comp_channel { fd = 8, }
    ibv_context { ops = 8, async_fd = 268, }
    ibv_cq { cq_context = 16, cqe = 28, }
    ibv_device { name = 24, }
    ibv_device_attr {
        max_mr_size = 80, vendor_id = 96, device_cap_flags = 116, max_srq_sge = 220,
        phys_port_cnt = 227,
    }
    ibv_mr { lkey = 36, rkey = 40, }
    ibv_mw { rkey = 16, }
    ibv_port_attr { state = 0, link_layer = 46, }
    ibv_qp { qp_context = 8, qp_num = 52, }
    ibv_qp_init_attr { cap = 32, qp_type = 52, }
    ibv_send_wr {
        next = 8, sg_list = 16, num_sge = 24, opcode = 28, send_flags = 32,
        imm_data_invalidated_rkey_union = 36, wr = 40, bind_mw_tso_union = 80,
    }
    bind_mw_t { bind_info = 16, }
    ibv_sge { addr = 0, length = 8, lkey = 12, }
    Sge { address = 0, length = 8, lkey = 12, }
    ibv_srq { srq_context = 8, }
    ibv_wc { imm_data_invalidated_rkey_union = 24, qp_num = 28, wc_flags = 36, }
    rdma_addr { dst_addr_union = 128, }
    rdma_cm_event { status = 20, param = 24, }
    rdma_cm_id { verbs = 0, channel = 8, context = 16, qp = 24, route = 32, port_num = 348, }
    rdma_conn_param { private_data_len = 8, qp_num = 16, }
}
