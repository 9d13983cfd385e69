package serde

// Optional gives a type a null: a nil pointer is null, anything else is what s makes of the value that
// it points to. Decode allocates the value. If s itself has a null (Bytes), that null becomes
// the nil pointer.
func Optional[T any](s Serde[T]) Serde[*T] { return optional[T]{s} }

type optional[T any] struct{ s Serde[T] }

func (o optional[T]) Append(dst []byte, v *T) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return o.s.Append(dst, *v)
}

func (o optional[T]) Decode(b []byte) (*T, error) {
	if b == nil {
		return nil, nil
	}
	v, err := o.s.Decode(b)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

func (o optional[T]) AliasesInput() bool { return Aliases(o.s) }
