# SPDX-License-Identifier: MIT
"""The pool of host memory that tests give to SGLang's storages."""

import torch

TOKENS = 16  # of a page
PAGES = 32
WIDTH = 4096  # floats of a token


class Pool:
    """Pages of host memory, with what storages call of SGLang's HostKVCache."""

    page_size = TOKENS
    dtype = torch.float32

    def __init__(self, layout):
        self.layout = layout
        whole = torch.empty(PAGES * TOKENS * WIDTH + 1024)
        begin = -whole.data_ptr() % 4096 // 4
        self.kv_buffer = whole[begin : begin + PAGES * TOKENS * WIDTH].view(-1, WIDTH)
        for page in range(PAGES):
            self.page(page * TOKENS)[:] = page

    def page(self, index):
        return self.kv_buffer[int(index) : int(index) + TOKENS]

    def get_size_per_token(self):
        return WIDTH * self.kv_buffer.element_size()

    get_ksize_per_token = get_size_per_token

    def is_stride_page_aligned(self, size):
        return self.kv_buffer.data_ptr() % size == 0 and self.page(0).nbytes % size == 0

    def get_dummy_flat_data_page(self):
        return torch.zeros(TOKENS * WIDTH)

    def get_data_page(self, index, flat=True):
        return self.page(index).flatten() if flat else self.page(index)

    def set_from_flat_data_page(self, index, page):
        self.page(index)[:] = page.reshape(TOKENS, WIDTH)

    def get_page_buffer_meta(self, indices):
        pages = [self.page(index) for index in indices[::TOKENS]]
        return [page.data_ptr() for page in pages], [page.numel() * page.element_size() for page in pages]


def indices(pages):
    return torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS) for page in pages])
