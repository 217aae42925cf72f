"""The recurrent network for text."""

from torch import Tensor, nn

from mmfl.models.options import require_counts


class CharacterLSTM(nn.Module):
    """Embedding, two LSTM layers and a linear layer: logits for the next character at every position.

    The papers' network for Shakespeare, on windows of 80 characters; it takes windows of any length. Train it with the
    loss `next_token`.

    >>> import torch
    >>> CharacterLSTM()(torch.zeros(2, 80, dtype=torch.long)).shape
    torch.Size([2, 80, 80])
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 128, hidden: int = 256, layers: int = 2):
        super().__init__()
        require_counts(self, vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [examples, time, vocabulary] for tokens [examples, time]."""
        states, _ = self.recurrent(self.embedding(x))
        return self.output(states)  # type: ignore[no-any-return]
